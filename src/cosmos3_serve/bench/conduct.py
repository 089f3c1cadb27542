"""How a run was conducted: as many questions in flight as a row says, a client that kept up, answers that streamed.

A check that counts on many requests names how many it needs: with fewer of them it finds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from cosmos3_serve.bench.findings import Finding, by_level, level_name
from cosmos3_serve.bench.records import Request, Run, Workload
from cosmos3_serve.errors import InputError

ENOUGH = 20
# A stream shows its pace by 8 tokens or more.
STREAM_TOKENS = 8
# Seconds between tokens that no engine reaches: an answer that "streams" faster was held back on its way.
BUFFERED_ITL_S = 0.00025
# Of the latency: TTFT of an answer that came at once.
BUFFERED_TTFT_SHARE = 0.9
# Text that comes in fewer bursts than a quarter of its pieces passed a buffer.
PIECES_A_BURST = 4
# The client is late by more than both: seconds, and the share of TTFT or latency that is its own.
LATE_S = 0.02
IDLE_S = 0.005
LATE_SHARE = 0.1
# Of the requests of a level that the client may be late with.
LATE_REQUESTS = 0.05


def require_possible(work: Workload) -> None:
    """Refuse a workload before it runs.

    Raises:
        InputError: a level has more questions in flight than there are videos (code `concurrency_unreached`).
    """
    over = [level for level in work.concurrency if level > work.videos]
    if over:
        raise InputError(
            f"{work.videos} videos with one question in flight each never reach a concurrency of"
            f" {', '.join(map(str, over))}",
            code="concurrency_unreached",
            remedy=f"--videos {max(over)} or more, or --concurrency up to {work.videos}",
        )


def concurrent(run: Run) -> Iterable[Finding]:
    """Each level had as many questions in flight as its row says."""
    for key, requests in by_level(run).items():
        most = min(key[1], run.workload.videos)
        if len(requests) >= ENOUGH:
            most = min(most, peak(requests))
        if most < key[1]:
            text = f"at most {most} questions were in flight where the row says {key[1]}"
            yield Finding("concurrency_unreached", text, 1, level_name(key))


def peak(requests: Iterable[Request]) -> int:
    """The most requests in flight at a time."""
    # An end sorts before a start of the same moment.
    events = sorted([(r.started, 1) for r in requests] + [(r.ended, -1) for r in requests])
    now = most = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def kept_up(run: Run) -> Iterable[Finding]:
    """A client whose loop is busy reads answers late, and sends the next question late."""
    for key, requests in by_level(run).items():
        if len(requests) < ENOUGH:
            continue
        late = [
            r
            for r in requests
            if r.client_late_s is not None
            and r.first is not None
            and r.client_late_s > max(LATE_S, LATE_SHARE * r.ttft)
        ]
        if len(late) > LATE_REQUESTS * len(requests):
            text = f"the client's event loop was busy for up to {max(r.client_late_s or 0 for r in late):.3f} s"
            yield Finding("client_slow", f"{text} while these were in flight", len(late), level_name(key))
        gaps = _gaps(requests)
        if len(gaps) >= ENOUGH and fmean(gaps) > max(IDLE_S, LATE_SHARE * fmean(r.latency for r in requests)):
            text = (
                f"the client let {fmean(gaps):.3f} s pass on average between an answer and the session's next question"
            )
            yield Finding("client_slow", text, len(gaps), level_name(key))


def _gaps(requests: Iterable[Request]) -> list[float]:
    """Seconds from each answer to the next question of the same video."""
    by_video: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        by_video[request.video].append(request)
    return [
        after.started - before.ended
        for asked in by_video.values()
        for before, after in pairwise(sorted(asked, key=lambda r: r.started))
    ]


def streamed(run: Run) -> Iterable[Finding]:
    """An answer that came at once has its latency as TTFT, and no pace: something on its way held it back."""
    for key, requests in by_level(run).items():
        answers = [r for r in requests if r.itl is not None and (r.output_tokens or 0) >= STREAM_TOKENS]
        if answers and (all(map(_at_once, answers)) or all(map(_in_bursts, answers))):
            text = "all answers came at once or in a few bursts: a proxy or the server buffers the stream"
            yield Finding("stream_buffered", text, len(answers), level_name(key))


def _at_once(request: Request) -> bool:
    return (request.itl or 0) < BUFFERED_ITL_S and request.ttft >= BUFFERED_TTFT_SHARE * request.latency


def _in_bursts(request: Request) -> bool:
    if request.pieces is None or request.bursts is None or request.pieces < STREAM_TOKENS:
        return False
    return request.bursts * PIECES_A_BURST <= request.pieces


def steady(run: Run) -> Iterable[Finding]:
    """One fleet of one size: figures of a fleet that grew or shrank belong to none."""
    if len(set(run.fleet)) > 1:
        text = f"the fleet changed while it was measured: {_sizes(run.fleet)} replicas"
        yield Finding("fleet_changed", text)
    seen = {request.replica for request in run.requests if request.replica is not None}
    if run.fleet_by == "caller" and run.replicas is not None and len(seen) > run.replicas:
        text = f"{len(seen)} replicas answered, the caller says {run.replicas}"
        yield Finding("fleet_contradicted", text)


def _sizes(fleet: Sequence[int]) -> str:
    return ", then ".join(map(str, [size for n, size in enumerate(fleet) if n == 0 or fleet[n - 1] != size]))
