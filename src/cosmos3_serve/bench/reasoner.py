"""One benchmark of a reasoner from its videos to its records: any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx

from cosmos3_serve.bench import machine
from cosmos3_serve.bench.aiperf import AIPerfLoad
from cosmos3_serve.bench.load import Load, text_of
from cosmos3_serve.bench.media_server import serve_videos
from cosmos3_serve.bench.records import Request, Run, Workload
from cosmos3_serve.bench.videos import MIME, Video, VideoSet, refuse_duplicates
from cosmos3_serve.client.reasoner import Reasoner, data_url
from cosmos3_serve.client.served import until_served
from cosmos3_serve.errors import ContractViolation, InputError


class Generator(Protocol):
    """What puts the load on: one level of sessions at a time."""

    name: str
    summary: str  # what the tool itself says of its last level; our own says nothing

    async def level(
        self, videos: Sequence[str], *, concurrency: int, repeat: int, done: Callable[[], None] = ...
    ) -> list[Request]: ...


@dataclass(frozen=True, slots=True)
class WithAIPerf:
    """Run AIPerf instead of our own load generator; `folder` keeps its files."""

    program: Path
    tokenizer: str
    folder: Path


async def run(
    reasoner: Reasoner,
    token: str,
    workload: Workload,
    directory: Path,
    *,
    video_host: str = "127.0.0.1",
    video_port: int = 0,
    video_base_url: str = "",
    video_public_url: str = "",
    aiperf: WithAIPerf | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    level_ended: Callable[[str, str], None] = lambda label, summary: None,
) -> Run:
    """Ask every question at every level, and write down what came.

    Args:
        reasoner: an entered client of the endpoint.
        video_base_url: where the clips are served already; "": this process serves them (transport http only).
        video_public_url: how the endpoint reaches the server of this process; "": by the address it is bound to.
        level_ended: told of each level, with the load generator's own summary, which nobody has checked yet.
        progress: level, requests that ended, requests in all.

    Raises:
        InputError: fewer clips than the workload needs (code `videos_too_few`).
        Cosmos3Error: the endpoint cannot be reached, or refuses before the first question.
    """
    listing = VideoSet.read(directory)
    videos = listing.videos[: workload.needed()]
    if len(videos) < workload.needed():
        raise InputError(
            f"{len(videos)} clips are there, the workload needs {workload.needed()}",
            code="videos_too_few",
            remedy=f"cosmos3 bench videos --count {workload.needed()}",
        )
    refuse_duplicates(videos)
    served = await _served(reasoner)
    with ExitStack() as stack:
        base = video_base_url.rstrip("/")
        if workload.transport == "http" and not base:
            base = stack.enter_context(serve_videos(directory, listing, host=video_host, port=video_port))
            if video_public_url:
                base = video_public_url.rstrip("/")
                await until_served(f"{base}/{videos[0].name}", videos[0].bytes)
        part = await _parts(reasoner, workload, directory, videos, base)
        load = await _load(reasoner, token, workload, part, aiperf)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        requests = await _levels(load, workload, [video.name for video in videos], progress, level_ended)
    return Run(
        workload=workload,
        recipe=listing.recipe,
        videos=videos,
        model=reasoner.model,
        server=served["server"],
        weights=served["weights"],
        load=load.name,
        machine=machine.describe(),
        started_at=started,
        requests=requests,
    )


async def _load(
    reasoner: Reasoner, token: str, workload: Workload, part: Mapping[str, str], aiperf: WithAIPerf | None
) -> Generator:
    if aiperf is None:
        return Load(workload, base_url=reasoner.endpoint, token=token, model=reasoner.model, part=part)
    alone = await reasoner.ask(text_of(0), max_tokens=1)
    load = AIPerfLoad(
        aiperf.program,
        aiperf.tokenizer,
        workload,
        base_url=reasoner.endpoint,
        token=token,
        model=reasoner.model,
        part=part,
        folder=aiperf.folder,
        text_tokens=int(alone.usage.get("prompt_tokens") or 0),
    )
    await load.prove()
    return load


async def _levels(
    load: Generator,
    workload: Workload,
    names: list[str],
    progress: Callable[[str, int, int], None],
    level_ended: Callable[[str, str], None],
) -> list[Request]:
    records: list[Request] = []
    total = workload.videos * workload.questions
    for repeat in range(workload.repeats):
        for place, concurrency in enumerate(workload.concurrency):
            first = (repeat * len(workload.concurrency) + place) * workload.videos if workload.fresh else 0
            label = f"concurrency {concurrency}" + (f", repeat {repeat + 1}" if workload.repeats > 1 else "")
            ended = 0

            def done(label: str = label) -> None:
                nonlocal ended
                ended += 1
                progress(label, ended, total)

            chosen = names[first : first + workload.videos]
            records += await load.level(chosen, concurrency=concurrency, repeat=repeat, done=done)
            level_ended(label, load.summary)
    return records


async def _parts(
    reasoner: Reasoner, workload: Workload, directory: Path, videos: list[Video], base: str
) -> Mapping[str, str]:
    """The URL of each video as its content part carries it."""
    if workload.transport == "http":
        return {video.name: f"{base}/{video.name}" for video in videos}
    if workload.transport == "data":
        # All in memory: said in the limits of the command, since a part must be ready when its question starts.
        return {video.name: await asyncio.to_thread(_data_url, directory / video.name) for video in videos}
    return {video.name: f"file-id:{await reasoner.upload(directory / video.name)}" for video in videos}


def _data_url(path: Path) -> str:
    return data_url(path).replace("video/mp4", MIME[path.suffix[1:]], 1)


async def _served(reasoner: Reasoner) -> dict[str, Any]:
    """The server and its weights, as `/v1/models` says.

    Raises:
        InputError: it serves another model (code `model_not_served`).
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
    weights = entry.get("weights")
    return {
        "server": str(entry.get("owned_by") or "unknown")[:80],
        "weights": weights if weights in ("random", "pretrained") else "unknown",
    }


async def choose_codec(reasoner: Reasoner, clips: Mapping[str, Path]) -> str:
    """The first codec (in the order given) of which the server says that it saw the video.

    Args:
        clips: one short clip of each codec.

    Raises:
        InputError: none of them was seen (code `no_codec`).
    """
    from cosmos3_serve.errors import Cosmos3Error

    refused = []
    for codec, path in clips.items():
        try:
            answer = await reasoner.ask("What is this?", await asyncio.to_thread(_data_url, path), max_tokens=1)
            if answer.video_tokens:
                return codec
            refused.append(f"{codec}: the usage counts no video tokens")
        except (Cosmos3Error, httpx.HTTPError) as error:
            refused.append(f"{codec}: {str(error)[:120]}")
    raise InputError(f"the server decoded no codec ({'; '.join(refused)})", code="no_codec")
