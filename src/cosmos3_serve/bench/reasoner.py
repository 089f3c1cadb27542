"""One benchmark of a reasoner from its videos to its records: any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from cosmos3_serve.bench import machine
from cosmos3_serve.bench.aiperf import AIPerfLoad
from cosmos3_serve.bench.codec import choose_codec, clip_url
from cosmos3_serve.bench.conduct import require_possible
from cosmos3_serve.bench.findings import refuse
from cosmos3_serve.bench.fleet import fleet_size, known_fleet
from cosmos3_serve.bench.load import Load, text_of
from cosmos3_serve.bench.media_server import serve_videos
from cosmos3_serve.bench.records import Request, Run, Weights, Workload
from cosmos3_serve.bench.scene_clips import MAX_TURNS
from cosmos3_serve.bench.served_clips import refuse_changed, refuse_changed_at
from cosmos3_serve.bench.validity import of_session
from cosmos3_serve.bench.videos import Video, VideoSet, refuse_duplicates
from cosmos3_serve.errors import ContractViolation, InputError, UsageError
from cosmos3_serve.reasoner_client.ask import Reasoner
from cosmos3_serve.reasoner_client.served import until_served

Progress = Callable[[str, int, int], None]
LevelEnded = Callable[[str, str], None]


def _silent(*told: object) -> None:
    """For those who want to be told nothing."""


class Generator(Protocol):
    """What puts the load on: one level of sessions at a time."""

    name: str
    summary: str  # what the tool itself says of its last level; our own says nothing
    proof: str | None  # `x-cosmos3-session` of the answer to the question before the run

    async def level(
        self, videos: Sequence[str], *, concurrency: int, repeat: int, done: Callable[[], None] = ...
    ) -> list[Request]: ...


@dataclass(frozen=True, slots=True)
class WithAIPerf:
    """Run AIPerf instead of our own load generator; `folder` keeps its files."""

    program: Path
    tokenizer: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Places:
    """Where clips are served with transport http: at `base_url`, else by this process; `port` 0 is a free one.

    `public_url`: how the endpoint reaches the server of this process; "": by the address it is bound to.
    """

    host: str = "127.0.0.1"
    port: int = 0
    base_url: str = ""
    public_url: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What whoever started the server knows and it does not say itself; empty: take its word.

    Args:
        weights: recorded as the caller's statement where the server says nothing of its weights.
        worker_ids: it is Dynamo, and says on demand which worker answered.
        replicas: of a server that does not say how many it has.
    """

    server: str = ""
    weights: Weights | None = None
    worker_ids: bool = False
    replicas: int | None = None


class Target:
    """One endpoint with its clips, ready for its levels; `records` grows with them."""

    def __init__(
        self,
        workload: Workload,
        listing: VideoSet,
        videos: list[Video],
        about: Mapping[str, Any],
        load: Generator,
        fleet: Callable[[], Awaitable[int | None]],
    ) -> None:
        self.workload, self.records = workload, list[Request]()
        self._listing, self._videos, self._about, self._load = listing, videos, about, load
        self._started = ""
        self._ask_fleet, self._fleet = fleet, list(about["fleet"])

    async def level(
        self, concurrency: int, repeat: int, progress: Progress = _silent, level_ended: LevelEnded = _silent
    ) -> None:
        """Ask every question of a level."""
        work, ended = self.workload, 0
        total = work.videos * work.questions
        place = repeat * len(work.concurrency) + work.concurrency.index(concurrency)
        first = place * work.videos if work.fresh else 0
        label = f"concurrency {concurrency}" + (f", repeat {repeat + 1}" if work.repeats > 1 else "")

        def done() -> None:
            nonlocal ended
            ended += 1
            progress(label, ended, total)

        self._started = self._started or datetime.now(UTC).isoformat(timespec="seconds")
        names = [video.name for video in self._videos[first : first + work.videos]]
        self.records += await self._load.level(names, concurrency=concurrency, repeat=repeat, done=done)
        if self._about["fleet_by"] == "server" and (size := await self._ask_fleet()) is not None:
            self._fleet.append(size)
        level_ended(label, self._load.summary)

    def run(self) -> Run:
        """What came."""
        return Run(
            workload=self.workload,
            recipe=self._listing.recipe,
            videos=self._videos,
            **{**self._about, "fleet": self._fleet},
            load=self._load.name,
            proof_session=self._load.proof,
            machine=machine.describe(),
            started_at=self._started,
            requests=self.records,
        )


async def run(
    reasoner: Reasoner,
    token: str,
    workload: Workload,
    directory: Path,
    *,
    places: Places = Places(),
    known: Known = Known(),
    aiperf: WithAIPerf | None = None,
    progress: Progress = _silent,
    level_ended: LevelEnded = _silent,
) -> Run:
    """Ask every question at every level, and write down what came.

    Args:
        level_ended: told of each level, with the load generator's own summary, which nobody has checked yet.
        progress: level, requests that ended, requests in all.

    Raises:
        As `prepare`.
    """
    async with prepare(reasoner, token, workload, directory, places=places, known=known, aiperf=aiperf) as target:
        await in_turns([target], progress, level_ended)
        return target.run()


async def in_turns(targets: Sequence[Target], progress: Progress = _silent, level_ended: LevelEnded = _silent) -> None:
    """Every repeat of every level of all targets."""
    for repeat, concurrency, target in turns(targets):
        await target.level(concurrency, repeat, progress, level_ended)


def turns(targets: Sequence[Target]) -> Iterator[tuple[int, int, Target]]:
    """Repeat, concurrency and target of each level in the order in which they are run.

    Targets take turns, and another one begins each repeat: what else happens on the machine meets all of them alike.
    Their workloads have the same levels and repeats.
    """
    work = targets[0].workload
    for repeat in range(work.repeats):
        begins = repeat % len(targets)
        for concurrency in work.concurrency:
            for target in [*targets[begins:], *targets[:begins]]:
                yield repeat, concurrency, target


@asynccontextmanager
async def prepare(
    reasoner: Reasoner,
    token: str,
    workload: Workload,
    directory: Path,
    *,
    places: Places = Places(),
    known: Known = Known(),
    aiperf: WithAIPerf | None = None,
) -> AsyncIterator[Target]:
    """An endpoint that serves the model, with clips that it decodes and a load whose headers were seen.

    Args:
        reasoner: an entered client of the endpoint.

    Raises:
        InputError: fewer videos than questions in flight (code `concurrency_unreached`), fewer clips than the workload
            needs (`videos_too_few`), a codec that the server does not
            decode (`no_codec`), another model (`model_not_served`), or other weights or another number of
            replicas than the server says (`weights_contradicted`, `replicas_contradicted`).
        IntegrityError: a clip is not what the listing says (code `video_changed`), or two are equal
            (`videos_duplicate`).
        UsageError: clips of scenes with AIPerf, or with more questions than a scene has answers to.
        Refusal: with AIPerf, sessions are not kept as the profile wants (code `run_invalid`).
        Cosmos3Error: the endpoint cannot be reached, or refuses before the first question.
    """
    require_possible(workload)
    listing = VideoSet.read(directory)
    if listing.recipe.content == "scenes":
        _require_own(workload, aiperf)
    videos = listing.videos[: workload.needed()]
    if len(videos) < workload.needed():
        raise InputError(
            f"{len(videos)} clips are there, the workload needs {workload.needed()}",
            code="videos_too_few",
            remedy=f"cosmos3 bench videos --videos-dir … --count {workload.needed()}",
        )
    refuse_duplicates(videos)
    if workload.transport != "http" or not places.base_url:
        await asyncio.to_thread(refuse_changed, directory, videos)
    about = await _about(reasoner, known) | await known_fleet(reasoner, known.replicas)
    with ExitStack() as stack:
        base = places.base_url.rstrip("/")
        if workload.transport == "http" and not base:
            base = stack.enter_context(serve_videos(directory, listing, host=places.host, port=places.port))
            if places.public_url:
                base = places.public_url.rstrip("/")
                await until_served(f"{base}/{videos[0].name}", videos[0].bytes)
        elif workload.transport == "http":
            await refuse_changed_at(base, videos)
        facts: dict[str, str] = {}
        await choose_codec(reasoner, [listing.recipe.codec], facts=facts)
        if aiperf is not None and workload.profile == "round-robin":
            # A video's content may make a session too, and AIPerf's records would not tell.
            refuse(list(of_session(workload, facts.get("x-cosmos3-session"))))
        part = await _parts(reasoner, workload, directory, videos, base)
        load = await _load(reasoner, token, workload, part, known, aiperf, scenes=listing.recipe.content == "scenes")
        yield Target(workload, listing, videos, about, load, lambda: fleet_size(reasoner))


def _require_own(workload: Workload, aiperf: WithAIPerf | None) -> None:
    if aiperf is not None:
        raise UsageError(
            "AIPerf asks for answers of one length, and cannot tell which are right",
            remedy="--load own for clips of scenes",
        )
    if workload.questions > MAX_TURNS:
        raise UsageError(
            f"a scene has {MAX_TURNS} questions with a right answer, not {workload.questions}",
            remedy=f"--questions {MAX_TURNS} or fewer",
        )


async def _load(
    reasoner: Reasoner, token: str, workload: Workload, part: Mapping[str, str], known: Known,
    aiperf: WithAIPerf | None, *, scenes: bool,
) -> Generator:  # fmt: skip
    alone = await reasoner.ask(text_of(0), max_tokens=1)
    text_tokens = int(alone.usage.get("prompt_tokens") or 0)
    load: Load | AIPerfLoad
    if aiperf is None:
        load = Load(workload, base_url=reasoner.endpoint, token=token, model=reasoner.model, part=part,
                    text_tokens=text_tokens, worker_ids=known.worker_ids, scenes=scenes)  # fmt: skip
    else:
        load = AIPerfLoad(aiperf.program, aiperf.tokenizer, workload, base_url=reasoner.endpoint, token=token,
                          model=reasoner.model, part=part, folder=aiperf.folder, text_tokens=text_tokens)  # fmt: skip
    await load.prove()
    return load


async def _parts(
    reasoner: Reasoner, workload: Workload, directory: Path, videos: list[Video], base: str
) -> Mapping[str, str]:
    """The URL of each video as its content part carries it."""
    if workload.transport == "http":
        return {video.name: f"{base}/{video.name}" for video in videos}
    if workload.transport == "data":
        # All in memory: said in the limits of the command, since a part must be ready when its question starts.
        return {video.name: await asyncio.to_thread(clip_url, directory / video.name) for video in videos}
    return {video.name: f"file-id:{await reasoner.upload(directory / video.name)}" for video in videos}


async def _about(reasoner: Reasoner, known: Known) -> dict[str, Any]:
    """The server and its weights, as `/v1/models` says; what it does not say, as the caller does.

    Raises:
        InputError: it serves another model (code `model_not_served`), or says that its weights are others than the
            caller does (`weights_contradicted`).
    """
    models = (await reasoner.get("/v1/models")).get("data")
    if not isinstance(models, list):
        raise ContractViolation("the server's list of models is no list")
    entry = next((m for m in models if isinstance(m, dict) and m.get("id") == reasoner.model), None)
    if entry is None:
        names = ", ".join(str(m.get("id"))[:80] for m in models[:5] if isinstance(m, dict))
        raise InputError(
            f"the server does not serve {reasoner.model}",
            code="model_not_served",
            remedy=f"--model with one of: {names}",
        )
    said = entry.get("weights")
    weights = said if said in ("random", "blockworld", "pretrained") else "unknown"
    if known.weights and weights not in ("unknown", known.weights):
        raise InputError(
            f"the server says that its weights are {weights}, not {known.weights}",
            code="weights_contradicted",
            remedy="leave out --weights: it is for servers that say nothing of theirs",
        )
    by_caller = weights == "unknown" and known.weights is not None
    return {
        "model": reasoner.model,
        "server": known.server or str(entry.get("owned_by") or "unknown")[:80],
        "weights": known.weights if by_caller else weights,
        "weights_by": "caller" if by_caller else "server",
    }
