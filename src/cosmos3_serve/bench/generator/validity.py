"""What makes a generator's run invalid. Each check names what it found; a run with any finding has no figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from cosmos3_serve.bench.findings import Finding, most, refuse
from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.records import Run, Sample, Workload
from cosmos3_serve.errors import InputError

LATE_S = 0.25
SLACK_S = 0.05


def require_valid(run: Run) -> None:
    """
    Raises:
        Refusal: code `run_invalid`; `errors` holds each finding, named by its code.
    """
    refuse(check(run))


def check(run: Run) -> list[Finding]:
    """Every finding of every check, worst first."""
    return [finding for one in CHECKS for finding in one(run)]


def answered(run: Run) -> Iterable[Finding]:
    lost = [s for s in run.samples if s.error is not None]
    if lost:
        yield _of("request_failed", f"requests failed: {most(Counter(str(s.error) for s in lost))}", lost)
    bad = [s for s in run.samples if s.error is None and s.state != "success"]
    if bad:
        yield _of("sample_failed", f"samples did not succeed: {most(Counter(str(s.state) for s in bad))}", bad)


def complete(run: Run) -> Iterable[Finding]:
    """Every cell ran, with every sample of every request once."""
    work = run.workload
    wanted = {(request, f"s{place}") for request in range(work.requests) for place in range(work.samples)}
    by_cell: dict[tuple[int, str, str], list[tuple[int, str]]] = defaultdict(list)
    for sample in run.samples:
        by_cell[sample.key].append((sample.request, sample.name))
    missing = set(work.keys()) ^ set(by_cell)
    if missing:
        yield Finding("cell_missing", "cells did not run, or were not asked for", len(missing))
    odd = [key for key, names in by_cell.items() if len(names) != len(wanted) or set(names) != wanted]
    if odd:
        yield Finding("cell_incomplete", "cells have not every sample once", len(odd), _cell(odd[0]))


def made_as_asked(run: Run) -> Iterable[Finding]:
    other = [s for s in _good(run) if any(str(s.made.get(name)) != str(value) for name, value in s.asked.items())]
    if other:
        yield _of("shape_changed", "samples were made in another shape than was asked for", other)


def artifacts(run: Run) -> Iterable[Finding]:
    good = _good(run)
    empty = [s for s in good if not s.files or any(size < 1 for _, size in s.files)]
    if empty:
        yield _of("artifact_missing", "samples succeeded without an artifact", empty)
    other = [s for s in good if s.fetched is False]
    if other:
        yield _of("artifact_differs", "artifacts did not arrive as they were declared", other)
    if run.workload.fetch:
        unfetched = [s for s in good if s.fetched is None]
        if unfetched:
            yield _of("artifact_not_fetched", "artifacts were to be fetched and were not", unfetched)
    hashes = Counter(sha for s in good for sha, _ in s.files)
    same = [s for s in good if any(hashes[sha] > 1 for sha, _ in s.files)]
    if same:
        yield _of("outputs_equal", "samples of different seeds have the same bytes: were they made at all?", same)


def require_possible(work: Workload) -> None:
    """Refuse a workload before it runs.

    Raises:
        InputError: a cell has more clients than requests (code `concurrency_unreached`).
    """
    over = _idle_clients(work)
    if over:
        raise InputError(
            f"{work.requests} requests a cell keep no {over[0].clients} clients busy ({over[0].label})",
            code="concurrency_unreached",
            remedy=f"--requests {max(one.clients for one in over)} or more",
        )


def concurrent(run: Run) -> Iterable[Finding]:
    """Every client of a closed cell has a request to send."""
    for arrivals in _idle_clients(run.workload):
        text = f"{run.workload.requests} requests keep no {arrivals.clients} clients busy"
        yield Finding("concurrency_unreached", text, 1, arrivals.label)


def _idle_clients(work: Workload) -> list[Arrivals]:
    return [one for one in work.arrivals if one.kind == "closed" and one.clients > work.requests]


def punctual(run: Run) -> Iterable[Finding]:
    """A load generator that is late makes other arrivals than it says."""
    late = [s for s in run.samples if s.started - s.due > LATE_S]
    if late:
        yield _of("arrivals_late", f"requests went out more than {LATE_S} s after they were due", late)
    odd = [s for s in run.samples if not s.due <= s.started + 1e-9 <= s.ended + 1e-9]
    if odd:
        yield _of("clock", "times of a sample are out of order", odd)


def waves(run: Run) -> Iterable[Finding]:
    """The batches that samples tell of must be there: as many samples as they say, within the service's own limits."""
    good = _good(run)
    told = [s for s in good if s.inference_id and s.coalesced_id]
    if told and len(told) != len(good):
        yield _of("waves_partial", "some samples tell of their batch and others do not",
                  [s for s in good if not s.inference_id or not s.coalesced_id])  # fmt: skip
        return
    for name, limit in (("coalesced", run.service.max_batch_size), ("inference", run.service.max_num_seqs)):
        members: dict[str, list[Sample]] = defaultdict(list)
        for sample in told:
            members[str(getattr(sample, f"{name}_id"))].append(sample)
        wrong = [group[0] for group in members.values() if {getattr(s, name) for s in group} != {len(group)}]
        if wrong:
            yield _of("waves_shared", f"{name} batches held other samples than this run's", wrong)
        large = [s for s in told if limit is not None and getattr(s, name) > limit]
        if large:
            yield _of("batch_too_large", f"{name} batches are larger than the service's limit of {limit}", large)


def alone(run: Run) -> Iterable[Finding]:
    """By the service's own counter nobody else was served meanwhile."""
    size = run.workload.requests * run.workload.samples
    other = [cell for cell in run.cells if cell.counted is not None and cell.counted != size]
    if other:
        seen = most(Counter(str(cell.counted) for cell in other))
        yield Finding(
            "foreign_work", f"the service counts other than {size} samples: {seen}", len(other), _cell(other[0].key)
        )


def phases(run: Run) -> Iterable[Finding]:
    good = _good(run)
    told = [s for s in good if s.timings]
    if told and len(told) != len(good):
        yield _of(
            "phases_partial", "some samples tell their phases and others do not", [s for s in good if not s.timings]
        )
    long = [s for s in told if sum(s.timings.values()) > s.ended - s.started + SLACK_S]
    if long:
        yield _of("phases_too_long", "phases of a sample add up to more than the client waited", long)


def same_service(run: Run) -> Iterable[Finding]:
    service = run.service
    wanted = {"revision": service.revision, "source": service.source, "guardrails": service.guardrails,
              "weights": service.weights}  # fmt: skip
    other = [s for s in _good(run) if s.served_by != wanted]
    if other:
        yield _of("service_changed", "answers come from another service than the one that was asked first", other)


CHECKS: tuple[Callable[[Run], Iterable[Finding]], ...] = (
    answered, complete, concurrent, made_as_asked, artifacts, punctual, waves, alone, phases, same_service,
)  # fmt: skip


def _good(run: Run) -> list[Sample]:
    return [s for s in run.samples if s.error is None and s.state == "success"]


def _of(code: str, text: str, bad: Sequence[Sample]) -> Finding:
    first = bad[0]
    return Finding(code, text, len(bad), f"request {first.request}, {first.name} at {_cell(first.key)}")


def _cell(key: tuple[int, str, str]) -> str:
    return f"{key[1]}, {key[2]}, repeat {key[0] + 1}"
