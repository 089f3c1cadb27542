"""Services tried on this machine: `quickstart` and `golden-eval` start them, ask, verify and stop."""
