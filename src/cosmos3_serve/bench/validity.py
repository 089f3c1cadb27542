"""What makes a run invalid. Each check names what it found; a run with any finding has no figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from cosmos3_serve.bench import conduct
from cosmos3_serve.bench.findings import Finding, by_level, level_name, most, of_requests, refuse, request_name
from cosmos3_serve.bench.records import Request, Run, Workload

NO_SESSION = "none"
# What a server says of a later question that it did not ask where the session was.
ASTRAY = ("moved", "spilled", "new")
# Of the later questions of a level: more of them, and what was measured is not affinity.
ASTRAY_SHARE = 0.05
# Of the later questions of a round robin: more of them at the replica of the one before is not round robin. With so
# many questions chance does it less than once in a thousand runs, also on two replicas.
STAYED_SHARE = 0.9
ENOUGH = 20


def require_valid(run: Run) -> None:
    """
    Raises:
        Refusal: code `run_invalid`; `errors` holds each finding, named by its code.
    """
    refuse(check(run))


def check(run: Run) -> list[Finding]:
    """Every finding of every check, worst first."""
    found: list[Finding] = []
    for one in CHECKS:
        found += one(run)
    return found


def answered(run: Run) -> Iterable[Finding]:
    bad = [r for r in run.requests if r.error is not None or r.status != 200 or r.first is None]
    if bad:
        kinds = Counter(r.error or f"status {r.status}" if r.first is None or r.error else "no text" for r in bad)
        yield of_requests("request_failed", f"requests failed: {most(kinds)}", bad)
    odd = [
        r for r in run.requests if r.first is not None and not r.started <= r.first <= (r.last or r.first) <= r.ended
    ]
    if odd:
        yield of_requests("clock", "times of a request are out of order", odd)


def complete(run: Run) -> Iterable[Finding]:
    """Every level asks every question of every video once, in order. A count of requests is no proof of that."""
    work = run.workload
    asked: dict[tuple[int, int], dict[str, list[Request]]] = defaultdict(lambda: defaultdict(list))
    for request in run.requests:
        asked[request.repeat, request.concurrency][request.video].append(request)
    expected = {(repeat, level) for repeat in range(work.repeats) for level in work.concurrency}
    if set(asked) != expected:
        yield Finding("level_missing", f"{len(expected - set(asked))} levels did not run", len(expected ^ set(asked)))
    for key, videos in asked.items():
        if len(videos) != work.videos:
            yield Finding(
                "video_missing", f"{len(videos)} of {work.videos} videos were asked about", 1, level_name(key)
            )
        wrong = [
            video
            for video, requests in videos.items()
            if [r.turn for r in sorted(requests, key=lambda r: r.started)] != list(range(work.questions))
        ]
        if wrong:
            yield Finding(
                "video_incomplete",
                f"videos have not all their {work.questions} questions, each once and in order",
                len(wrong),
                f"{wrong[0]} at {level_name(key)}",
            )


def lengths(run: Run) -> Iterable[Finding]:
    wanted = run.workload.output_tokens
    least = 1 if run.recipe.content == "scenes" else wanted
    bad = [r for r in run.requests if not least <= (r.output_tokens or 0) <= wanted]
    if bad:
        seen = Counter(str(r.output_tokens) for r in bad)
        yield of_requests("output_length", f"answers have not {run.length} tokens: {most(seen)}", bad)


def distinct(run: Run) -> Iterable[Finding]:
    hashes = Counter(video.sha256 for video in run.videos)
    twice = [sha for sha, count in hashes.items() if count > 1]
    if twice:
        yield Finding("videos_duplicate", "videos have the same content", len(twice))
    listed = {video.name for video in run.videos}
    strange = [r for r in run.requests if r.video not in listed]
    if strange:
        yield of_requests("video_unlisted", "a request names a video that is not listed", strange)


def seen(run: Run) -> Iterable[Finding]:
    """The model saw the video: its tokens are in the usage, as the server counts them or as the prompt is longer."""
    blind = [r for r in run.requests if not r.video_tokens]
    if blind:
        yield of_requests("video_not_seen", "the usage counts no tokens of the video", blind)


def headers(run: Run) -> Iterable[Finding]:
    """Affinity that is silently off gives wrong numbers without one error: the header's arrival must be proved."""
    name = run.workload.session_header.lower()
    yield from of_session(run.workload, run.proof_session)
    if run.workload.profile == "round-robin":
        sent = [r for r in run.requests if r.session is not None or name in r.headers]
        if sent:
            yield of_requests("session_header_sent", "pure round robin sends no session header", sent)
        kept = [r for r in run.requests if r.session_state not in (NO_SESSION, None)]
        if kept:
            yield of_requests("affinity_on", "the server kept sessions although the profile is round robin", kept)
        return
    unsent = [r for r in run.requests if r.session is None or name not in r.headers]
    if unsent:
        yield of_requests("session_header_missing", f"requests carry no {run.workload.session_header}", unsent)
    # A server that speaks of sessions knows better than what was seen on the way to it.
    unproved = [
        r
        for r in run.requests
        if r.session_state == NO_SESSION or (r.session_state is None and r.header_seen is not True)
    ]
    if unproved:
        yield of_requests("session_header_unproved", "nothing proves that the session header arrived", unproved)
    by_video: dict[tuple[int, int, str], set[str | None]] = defaultdict(set)
    for request in run.requests:
        by_video[request.repeat, request.concurrency, request.video].add(request.session)
    if any(len(sessions) != 1 for sessions in by_video.values()):
        yield Finding("session_mixed", "the questions of one video carry several session ids")
    owners = Counter(next(iter(sessions)) for sessions in by_video.values() if len(sessions) == 1)
    if any(count > 1 for count in owners.values()):
        yield Finding("session_shared", "several videos carry the same session id")


def of_session(work: Workload, state: str | None) -> Iterable[Finding]:
    """What the server said of the session of a question before the run; None: it says nothing of sessions."""
    if work.profile == "session-affinity" and state == NO_SESSION:
        text = f"the server took no session from {work.session_header}: it reads another header, or keeps none"
        yield Finding("session_header_unproved", text)
    if work.profile == "round-robin" and state not in (NO_SESSION, None):
        yield Finding("affinity_on", "the server kept a session although the profile is round robin")


def routed(run: Run) -> Iterable[Finding]:
    """Affinity keeps a session where it is; only the server itself may say that it moved, and not often."""
    if run.workload.profile != "session-affinity":
        return
    # A header that arrived may still be ignored: something must tell of every question where it went.
    tells: tuple[Callable[[Request], bool], ...] = (
        lambda r: r.session_state is not None,
        lambda r: r.replica is not None,
        lambda r: r.cached_tokens is not None,
    )
    if not any(all(told(r) for r in run.requests) for told in tells):
        yield Finding(
            "affinity_unproved",
            "nothing tells of every question that its session stayed: no session state, no replica, no cached tokens"
            " (let the server count them, --enable-prompt-tokens-details of vLLM, or use --load own)",
        )
    homes: dict[str, str] = {}
    strayed = []
    for request in sorted(run.requests, key=lambda r: r.started):
        if not request.session or not request.replica or request.session_state == "spilled":
            continue  # a spilled question is answered elsewhere and its session stays
        if request.session_state in ASTRAY:
            homes[request.session] = request.replica
        elif homes.setdefault(request.session, request.replica) != request.replica:
            strayed.append(request)
    if strayed:
        yield of_requests("session_scattered", "questions of one session went to several replicas", strayed)
    for key, requests in by_level(run).items():
        later = [r for r in requests if r.turn > 0]
        astray = [r for r in later if r.session_state in ASTRAY]
        if len(astray) > ASTRAY_SHARE * len(later):
            kinds = most(Counter(str(r.session_state) for r in astray))
            text = f"more than {ASTRAY_SHARE:.0%} of the later questions left their session's replica: {kinds}"
            yield Finding("affinity_not_kept", text, len(astray), level_name(key))


def mixed(run: Run) -> Iterable[Finding]:
    """Round robin that leaves the videos on one replica each has affinity's figures under another name."""
    if run.workload.profile != "round-robin" or run.workload.questions < 2 or run.replicas == 1:
        return
    if run.requests and all(request.replica is not None for request in run.requests):
        if run.replicas is None and len({request.replica for request in run.requests}) == 1:
            return  # a fleet of one, as far as anybody tells
        for key, requests in by_level(run).items():
            stayed = _stayed(requests)
            if len(stayed) >= ENOUGH and sum(stayed) >= STAYED_SHARE * len(stayed):
                text = f"{sum(stayed)} of {len(stayed)} later questions went to the replica of the one before"
                yield Finding("round_robin_sticky", f"{text}: affinity by another name", 1, level_name(key))
        return
    if NO_SESSION in (run.proof_session, *{request.session_state for request in run.requests}):
        return  # the server's own word; `headers` refuses any other
    first = next(((r.repeat, r.concurrency) for r in run.requests), None)
    later: dict[tuple[int, int, str], list[bool]] = defaultdict(list)
    for request in run.requests:
        key = request.repeat, request.concurrency
        if request.turn > 0 and (run.workload.fresh or key == first) and request.is_warm is not None:
            later[(*key, request.video)].append(request.is_warm)
    # A video that is asked about on another replica is cold there once more.
    warm = [video for video, found in later.items() if all(found)]
    if len(warm) < STAYED_SHARE * len(later):
        return
    if later and run.replicas is not None:
        if sum(map(len, later.values())) >= ENOUGH:
            text = f"{len(warm)} of {len(later)} videos were in the cache at every later question"
            yield Finding("round_robin_sticky", f"{text}, on {run.replicas} replicas: affinity by another name")
        return
    yield Finding(
        "round_robin_unproved",
        "nothing tells that the questions of a video went to several replicas: no replica, no word of sessions, and no"
        " later question that was cold (--replicas 1 if it is a single replica; --load own --worker-ids of Dynamo)",
    )


def _stayed(requests: Iterable[Request]) -> list[bool]:
    """Of each later question, whether it went to the replica of the one before it."""
    last: dict[str, str | None] = {}
    found = []
    for request in sorted(requests, key=lambda r: r.started):
        if request.video in last:
            found.append(request.replica == last[request.video])
        last[request.video] = request.replica
    return found


def temperatures(run: Run) -> Iterable[Finding]:
    """Cold where it must be cold, warm where it must be warm, by the server's own count of cached tokens."""
    work = run.workload
    untold = [r for r in run.requests if r.error is None and r.cached_tokens is None]
    if untold and any(r.cached_tokens is not None for r in run.requests):
        yield of_requests(
            "cached_partial", "some answers count cached tokens and these do not: not all can be checked", untold
        )
    first_level = next(((r.repeat, r.concurrency) for r in run.requests), None)
    for request in run.requests:
        fresh = work.fresh or (request.repeat, request.concurrency) == first_level
        if request.turn == 0 and fresh and request.is_warm:
            yield Finding(
                "cold_is_warm", "the first question of a new video found it in the cache", 1, request_name(request)
            )
            return
    if work.profile == "session-affinity":
        cold = [r for r in run.requests if r.turn > 0 and r.session_state not in ASTRAY and r.is_warm is False]
        if cold:
            yield of_requests("warm_is_cold", "a later question of a session did not find its video in the cache", cold)


CHECKS: tuple[Callable[[Run], Iterable[Finding]], ...] = (
    answered, complete, conduct.concurrent, conduct.kept_up, conduct.streamed, conduct.steady, lengths, distinct, seen,
    headers, routed, mixed, temperatures,
)  # fmt: skip
