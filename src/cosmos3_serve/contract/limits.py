"""Bounds of one sample that the framework leaves open. They are our deliberate narrowing, each far above any real use,
so that no request can ask for unbounded memory, time or log lines."""

from __future__ import annotations

from typing import Final

MAX_PROMPT_BYTES: Final = 64 * 1024
MAX_TEMPLATE_CHARS: Final = 1024
MAX_URI_CHARS: Final = 4096  # an S3 key of 1,024 bytes, percent-encoded, with its bucket
MAX_LABEL_CHARS: Final = 256

MAX_NUM_FRAMES: Final = 10_000
MAX_NUM_STEPS: Final = 1_000
MAX_FPS: Final = 1_000
MAX_ACTION_CHUNK: Final = 10_000
MAX_NEW_TOKENS: Final = 1_000_000
MAX_CONDITION_INDEXES: Final = 4_096
# What a signed 64-bit generator seed can hold.
MIN_SEED: Final = -(2**63)
MAX_SEED: Final = 2**63 - 1

MAX_SAMPLE_DEPTH: Final = 16
MAX_SAMPLE_NODES: Final = 10_000
MAX_INTEGER_BITS: Final = 1_024  # Python refuses to print much larger ones

# One answer never lists more findings than a person would read.
MAX_FINDINGS: Final = 100
# Guessing what a misspelt key meant costs a millisecond; a body of keys must not buy minutes of it.
MAX_GUESSES: Final = 20
MAX_MESSAGE_CHARS: Final = 400
