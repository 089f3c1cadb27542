"""What a client is told when no replica gets its request."""

from __future__ import annotations

from cosmos3_serve.errors import NotReady, QueueFull, ValidationFailed
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.sessions.decide import Action
from cosmos3_serve.reasoner.sessions.messages import Grant
from cosmos3_serve.reasoner.sessions.suspects import HOLD_S, Aboard, SuspectTracker

RETRY_AFTER_S = 1.0
LOADING_RETRY_S = 5.0  # there is no replica at all: the first one loads, which takes longer than a second


def granted(grant: Grant, fleet: Fleet) -> ReplicaRef:
    """
    Raises:
        QueueFull, NotReady: why there is no replica.
    """
    if grant.replica is not None:
        return grant.replica
    if grant.why is Action.BUSY:
        raise NotReady("the session's replica is full", code="session_home_busy", retry_after_s=RETRY_AFTER_S)
    if grant.why is Action.LOST:
        raise NotReady("the session's replica is away", code="session_home_lost", retry_after_s=RETRY_AFTER_S)
    if fleet.busy():
        raise saturated(None)
    remedy = "replicas load or are being replaced: GET /ready says what they wait for"
    wait_s = RETRY_AFTER_S if fleet.replicas else LOADING_RETRY_S
    raise NotReady("no replica is ready", code="no_replica", remedy=remedy, retry_after_s=wait_s)


def check_suspects(suspects: SuspectTracker, request: Aboard, now: float, *, first: bool) -> None:
    """
    Args:
        first: this is the first attempt of the request; a second one was allowed already.

    Raises:
        ValidationFailed: `media_quarantined`, `request_quarantined`.
        NotReady: `request_suspected`: the verdict is awaited.
    """
    if any(suspects.quarantined(item, now) for item in request.media):
        raise ValidationFailed(
            "this media is quarantined: replicas died while they worked on it",
            code="media_quarantined",
            remedy="re-encode it, for instance: ffmpeg -i IN -c:v libx264 -pix_fmt yuv420p OUT.mp4",
        )
    if request.digest and suspects.quarantined(request.digest, now):
        raise ValidationFailed(
            "this request is quarantined: replicas died while they worked on it",
            code="request_quarantined",
            remedy="ask it in another way, or with other parameters",
        )
    left = max((suspects.held(item, now) for item in (*request.media, request.digest)), default=0.0)
    if first and left:
        raise NotReady(
            "a replica was lost while it worked on this very request or its media; the cause is being judged",
            code="request_suspected",
            remedy="send it again after the time that Retry-After tells",
            retry_after_s=left,
        )


def saturated(retry_after_s: float | None) -> QueueFull:
    wait = RETRY_AFTER_S if retry_after_s is None else retry_after_s
    return QueueFull("every replica is full", code="fleet_saturated", retry_after_s=wait)


def lost_on(request: Aboard) -> NotReady:
    if request.media:
        return NotReady(
            "the replica was lost while it worked on media that none has answered yet",
            code="replica_lost_on_media",
            remedy="send the request again; media that takes a replica along once more is quarantined",
            retry_after_s=HOLD_S,
        )
    return NotReady(
        "the replica was lost while it worked on a request that none has answered yet",
        code="replica_lost_on_request",
        remedy="send the request again; one that takes a replica along once more is quarantined",
        retry_after_s=HOLD_S,
    )
