"""Guardrails: the text check in front of the engines, the media check behind them, and the record of both.

Everything here fails closed. A check that raises, takes too long or answers nonsense fails its sample; one that cannot
be loaded refuses the start. `--no-guardrails` is the only way to run without, and every record says so.
"""

# The text guard's names in Serve.
GUARD_APP = "cosmos3_guardrails"
GUARD = "text_guard"
