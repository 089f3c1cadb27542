"""What is written down: the workload, and one record a request. Every figure comes from these and nothing else."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.bench.videos import Recipe, Video

Profile = Literal["round-robin", "session-affinity"]
Transport = Literal["http", "data", "file-id"]
Weights = Literal["random", "blockworld", "pretrained", "unknown"]
SESSION_HEADER = "X-Dynamo-Session-ID"
WARM_SHARE = 0.5
SCHEMA = "cosmos3.bench.reasoner.v1"


class Workload(BaseModel):
    """
    Args:
        questions: of each video, asked one after another.
        output_tokens: exactly, of every answer; at most, where clips are scenes, whose answers end where they end.
        concurrency: requests in flight, one level after another.
        fresh: each level gets videos that no level before it used (strict), else all levels use the same (the seed's
            way: from the second level on, caches may still hold them).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: Profile
    videos: int = Field(default=200, ge=1, le=100_000)
    questions: int = Field(default=20, ge=1, le=1000)
    output_tokens: int = Field(default=128, ge=1, le=65_536)
    concurrency: tuple[int, ...] = Field(default=(1, 2, 4, 8, 16), min_length=1)
    repeats: int = Field(default=1, ge=1, le=100)
    fresh: bool = False
    transport: Transport = "http"
    session_header: str = SESSION_HEADER

    def needed(self) -> int:
        """How many distinct videos a run takes."""
        return self.videos * (len(self.concurrency) * self.repeats if self.fresh else 1)


class Request(BaseModel):
    """One question. Times in seconds of one monotonic clock; None is what the server did not tell.

    Args:
        turn: from 0; the questions of a video in their order.
        headers: names of what was sent beside the usual ones, lower case.
        header_seen: whether a recording proxy saw the session header on its way; None where none is sent.
        first, last: when the first and the last piece of text came.
        session_state: `x-cosmos3-session` of our server: new, hit, moved, spilled (this question alone went elsewhere),
            none. AIPerf does not write it down.
        pieces, bursts: events with text, and how many times some came after a pause. AIPerf writes neither down.
        right: whether the answer is the right one, of a question about a scene; None: of another.
        client_late_s: the longest time for which the client's event loop was busy meanwhile.
        replica, media_state: `x-cosmos3-replica` and `x-cosmos3-media` of our server, or the worker's id of Dynamo.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat: int
    concurrency: int
    video: str
    turn: int
    session: str | None = None
    headers: tuple[str, ...] = ()
    header_seen: bool | None = None
    started: float
    first: float | None = None
    ended: float
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    video_tokens: int | None = None
    replica: str | None = None
    session_state: str | None = None
    media_state: str | None = None
    last: float | None = None
    pieces: int | None = None
    bursts: int | None = None
    right: bool | None = None
    client_late_s: float | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token; only of an answered request."""
        assert self.first is not None
        return self.first - self.started

    @property
    def latency(self) -> float:
        return self.ended - self.started

    @property
    def is_warm(self) -> bool | None:
        """Whether the server had most of the video in its cache, by its own count; None where it does not count."""
        if self.cached_tokens is None or not self.video_tokens:
            return None
        return self.cached_tokens >= WARM_SHARE * self.video_tokens

    @property
    def itl(self) -> float | None:
        """Mean seconds between tokens after the first."""
        if self.first is None or self.last is None or not self.output_tokens or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)


class Run(BaseModel):
    """Everything of one run.

    Args:
        weights: random, pretrained or unknown; `weights_by` says whose word that is.
        proof_session: `x-cosmos3-session` of the answer to the question before the run; None where it is not sent.
        fleet: serving replicas before the run and after each level, as `/ready` says, else the caller's number; empty:
            nobody told. `fleet_by` says whose word that is.
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: str = Field(default=SCHEMA, pattern=r"^cosmos3\.bench\.reasoner\.v1$")
    workload: Workload
    recipe: Recipe
    videos: list[Video]
    model: str
    server: str
    weights: Weights
    weights_by: Literal["server", "caller"] = "server"
    load: str
    proof_session: str | None = None
    fleet: list[int] = []
    fleet_by: Literal["server", "caller"] = "server"
    machine: dict[str, str | int | float | list[float]]
    started_at: str
    requests: list[Request]

    @property
    def replicas(self) -> int | None:
        """How many replicas served it when it began; None: nobody told."""
        return self.fleet[0] if self.fleet else None

    @property
    def length(self) -> str:
        """How many tokens an answer has, in words."""
        most = self.workload.output_tokens
        return f"1 to {most}" if self.recipe.content == "scenes" else f"exactly {most}"

    @property
    def temperature_checked(self) -> bool:
        """Whether the server's counts of cached tokens show that cold was cold and warm was warm."""
        return all(request.cached_tokens is not None for request in self.requests)
