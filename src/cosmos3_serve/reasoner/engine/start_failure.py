"""Why an engine did not start, from its exit code and its last words: a code, one sentence, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cosmos3_serve.errors import ServiceFailure, StartRefused
from cosmos3_serve.reasoner.engine.interpreter import REMEDY

# `(APIServer pid=12) ERROR 11-29 …` and the like stand before the words.
_PREFIX = re.compile(r"^(?:\([\w ]*pid=\d+\)\s*)?(?:(?:ERROR|INFO|WARNING)\s+[\d-]+\s+[\d:.]+\s+\[[^\]]*\]\s*)?")
_SAID = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b:?.*|^.*: error: .*|^Value error, ")
_GENERIC = ("Engine core initialization failed", "See root cause above", "WorkerProc initialization failed")


def start_failure(code: int | None, lines: Sequence[str]) -> StartRefused | ServiceFailure:
    """The typed failure. What another attempt may cure is a ServiceFailure, what it cannot is a StartRefused."""
    words = [_PREFIX.sub("", line).strip() for line in lines]
    errors = [word for word in words if _SAID.match(word) and not any(text in word for text in _GENERIC)]
    last = (errors or words or ["it said nothing"])[-1][:400]
    text = "\n".join(words)
    if code == 127:
        return StartRefused(f"the engine's Python cannot be run: {last}", code="vllm_missing", remedy=REMEDY)
    if re.search(
        r"\b(?:ModuleNotFoundError|ImportError)\b|cannot open shared object|does not exist.*torchvision", text
    ):
        return StartRefused(f"vLLM cannot be imported: {last}", code="vllm_import_failed", remedy=REMEDY)
    if re.search(r"[Aa]ddress already in use", text):
        return ServiceFailure(f"the engine's port was taken: {last}", code="port_unavailable")
    if re.search(r": error: (?:unrecognized arguments|argument)", text):
        return StartRefused(
            f"vLLM refused its arguments: {last}", code="vllm_arguments_refused", remedy="correct or drop --vllm-arg"
        )
    if re.search(r"out of memory|OutOfMemory|No available memory|larger than the (?:maximum|available KV)", text):
        return StartRefused(
            f"the model does not fit: {last}",
            code="vllm_out_of_memory",
            remedy="lower --max-model-len or --max-num-seqs, or --vllm-arg=--gpu-memory-utilization=…",
        )
    if code is not None and code < 0:
        return ServiceFailure(
            f"the engine was ended by signal {-code}",
            code="vllm_failed",
            remedy="a signal 9 nobody sent usually means that the machine ran out of memory",
        )
    return StartRefused(
        f"vLLM did not start: {last}", code="model_refused", remedy="check --model; the log above has vLLM's own words"
    )
