"""Outcomes: what leaves the service about a batch: its view, and the response bytes once it ended.

Nothing absolute leaves: the output directory becomes root-relative, staged paths become the URIs that the client gave,
messages lose every path (docs/contract.md 2.4). Upstream's SampleOutputs stay as they are in `outputs[]`; codes and
records go beside them in `samples[]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.contract.records import SampleCompute, SampleOutputs, SampleState, SampleWave
from cosmos3_serve.contract.views import BatchState, BatchView, SampleView
from cosmos3_serve.generator.ledger.batch import Batch, SampleDetail, Summary
from cosmos3_serve.generator.ledger.events import instant

MAX_MESSAGE = 300
# In quotes to their end; else to a blank, and on over blanks while a word holds a slash.
_ABSOLUTE_PATH = re.compile(
    r"""(?<=['"`])/[^'"`]*/[^'"`]*(?=['"`])|(?<![\w/:])(?:/[\w.@+~-]+){2,}/?(?: [\w.@+~-]+(?:/[\w.@+~-]+)+/?)*"""
)
FILE_KEYS = ("_path", "_file", "_dir", "_url")


@dataclass(frozen=True, slots=True)
class Service:
    """What every response says about the service itself."""

    backend: str
    framework_revision: str
    source_revision: str
    guardrails: bool
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file that the ledger declares."""

    path: Path
    bytes: int
    sha256: str


def shown(text: str) -> str:
    """A message that may be shown: its first line, short, without absolute paths."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    line = _ABSOLUTE_PATH.sub("<path>", line.encode("utf-8", "backslashreplace").decode("utf-8"))
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def public_outputs(
    result: SampleOutputs, *, directory: str, output_root: str, given: Mapping[str, str]
) -> dict[str, Any]:
    """An engine's SampleOutputs as they may leave.

    Args:
        directory: the sample's directory relative to the output root.
        given: staged path to the URI that the client gave.
    """
    root = output_root.rstrip("/") + "/"
    # An engine may say a staged path as it got it, or relative to the output root.
    given = {**given, **{path.removeprefix(root): uri for path, uri in given.items()}}
    args = _rewritten(result.args, root, given)
    args["output_dir"] = directory
    return {**result.model_dump(mode="json"), "args": args, "message": None, "stack_trace": None}


def _rewritten(value: Any, root: str, given: Mapping[str, str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _rewritten(item, root, given, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_rewritten(item, root, given, key) for item in value]
    if isinstance(value, str) and key.endswith(FILE_KEYS):
        return given.get(value, value.removeprefix(root))
    return value


def companies_of(samples: Sequence[SampleDetail]) -> dict[str, list[str]]:
    """Names of a batch's samples by the inference call that they shared."""
    companies: dict[str, list[str]] = {}
    for sample in samples:
        if sample.wave and sample.wave.get("inference_id"):
            companies.setdefault(sample.wave["inference_id"], []).append(sample.name)
    return companies


def wave_of(sample: SampleDetail, companies: Mapping[str, list[str]]) -> SampleWave | None:
    """The sample's wave; neighbours are those of its own batch only."""
    if sample.wave is None:
        return None
    together = companies.get(sample.wave.get("inference_id", ""), [])
    return SampleWave(**{**sample.wave, "neighbours": [name for name in together if name != sample.name]})


def compute_of(sample: SampleDetail) -> SampleCompute | None:
    return None if sample.compute is None else SampleCompute.model_validate(sample.compute)


def batch_view(batch: Batch, samples: Sequence[SampleDetail], steps: Mapping[str, tuple[int, int]]) -> BatchView:
    """A batch as it is now; `steps` is (step, total) by sample name of what denoises."""
    states = {sample.state for sample in samples}
    companies = companies_of(samples)
    return BatchView(
        request_id=batch.request_id,
        state=batch.state,
        model=batch.model,
        created_at=instant(batch.created_at),
        started_at=None if batch.started_at is None else instant(batch.started_at),
        ended_at=None if batch.ended_at is None else instant(batch.ended_at),
        samples=[_sample_view(batch, sample, steps.get(sample.name), companies) for sample in samples],
        links=_links(batch.request_id, batch.ended_at is not None),
        partial=batch.ended_at is not None and len(states) > 1 and SampleState.SUCCEEDED in states,
    )


def _sample_view(
    batch: Batch, sample: SampleDetail, steps: tuple[int, int] | None, companies: Mapping[str, list[str]]
) -> SampleView:
    running = sample.state is SampleState.RUNNING
    step, total = steps if running and steps else (None, None)
    return SampleView(
        name=sample.name,
        state=sample.state,
        code=sample.code,
        message=sample.message,
        retryable=sample.retryable,
        finishing=running and batch.cancelled_at is not None,
        seed=sample.seed,
        step=step,
        total_steps=total,
        guardrails=sample.guardrails,
        timings=sample.timings,
        wave=wave_of(sample, companies),
        compute=compute_of(sample),
        media=sample.media,
    )


def summary_view(summary: Summary, model: str) -> BatchView:
    """What a listing shows without reading a journal (no samples), and all that is left of an expired batch."""
    return BatchView(
        request_id=summary.request_id,
        state=summary.state,
        model=model,
        created_at=instant(summary.created_at),
        ended_at=instant(summary.ended_at) if summary.state.ended else None,
        links=_links(summary.request_id, summary.state.ended and summary.state is not BatchState.EXPIRED),
    )


def _links(request_id: str, ended: bool) -> dict[str, str]:
    base = f"/v1/batches/{request_id}"
    links = {"self": base, "events": f"{base}/events"}
    return {**links, "response": f"{base}/response"} if ended else links
