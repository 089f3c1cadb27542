"""A double of cosmos-guardrail: its import names, no checks. Only test services have it on their path."""
