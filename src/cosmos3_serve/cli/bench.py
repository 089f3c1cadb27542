"""`cosmos3 bench …`: videos, a run against a reasoner, two runs compared, a fleet planned."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.bench_generator import generator
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.progress_bar import first_error, progress
from cosmos3_serve.cli.reasoner import MODEL, Endpoint, Json, Model, Timeout, TokenEnv
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import REASONER_TOKEN_ENV

Videos = Annotated[Path, typer.Option("--videos-dir", help="Directory of the clips and their listing.")]

Environment = Annotated[Path, typer.Option("--aiperf-dir", help="AIPerf's environment.")]
ENVIRONMENT = Path(".venv-aiperf")


def register(app: typer.Typer) -> None:
    text = "Measure a reasoner or a generator: of an invalid run we compute no figure."
    commands: dict[str, Callable[..., None]] = {
        "setup": setup,
        "videos": videos,
        "reasoner": reasoner,
        "generator": generator,
        "compare": compare,
    }
    app.add_typer(command_group("bench", text, plan=plan, **commands))


def setup(aiperf_dir: Environment = ENVIRONMENT, json: Json = False) -> None:
    """Install AIPerf into an environment of its own (about 1.2 GB); nothing happens where it is already."""
    from cosmos3_serve.bench.aiperf import VERSION, set_up

    with output.console().status(f"AIPerf {VERSION} into {aiperf_dir}"):
        program = set_up(aiperf_dir)
    if json:
        output.emit({"program": str(program), "version": VERSION})
    else:
        output.console().print(f"AIPerf {VERSION}: {program}", markup=False)


def videos(
    videos_dir: Videos = Path("bench-videos"),
    count: Annotated[int, typer.Option("--count", min=1, max=100_000, help="How many distinct clips.")] = 200,
    content: Annotated[
        str, typer.Option("--content", help="shapes, or scenes: of block world, 1 s of 9 frames, 320x192; needs numpy.")
    ] = "",
    seconds: Annotated[int | None, typer.Option("--seconds", min=1, max=3600, help="Length of each; 30.")] = None,
    fps: Annotated[int | None, typer.Option("--fps", min=1, max=60, help="Frames a second; 2.")] = None,
    size: Annotated[str, typer.Option("--size", help="WIDTHxHEIGHT in pixels, both even; 640x360.")] = "",
    codec: Annotated[
        str, typer.Option("--codec", help="h264, hevc, vp9, mpeg4, or auto: the first that the endpoint decodes.")
    ] = "",
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes that encode; one a core.")] = None,
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    model: Model = MODEL,
    timeout: Timeout = 600,
    json: Json = False,
) -> None:
    """Make distinct synthetic clips and list them with their hashes. What is there already is kept.

    Clips join those that the directory lists, and are made as they were. In a new directory they are h264, or with
    --endpoint in the first codec of which that server says that it saw a clip; --codec names one.
    """
    from pydantic import ValidationError

    from cosmos3_serve.bench.codec import AUTO, choose_codec
    from cosmos3_serve.bench.videos import CODECS, LISTING, SCENES, Recipe, VideoSet, make_videos
    from cosmos3_serve.blockworld.asked import require_measures
    from cosmos3_serve.reasoner_client.ask import Reasoner

    async def choose(codecs: tuple[str, ...]) -> str:
        async with Reasoner(endpoint, token_env=token_env, model=model, timeout_s=timeout) as asked:
            return await choose_codec(asked, codecs)

    there = VideoSet.read(videos_dir).recipe if (videos_dir / LISTING).exists() else None
    wanted_codec = codec or (there.codec if there else AUTO if endpoint else "h264")
    try:
        asked_for: dict[str, object] = {"seconds": seconds, "fps": fps, "content": content or None}
        if size:
            width, _, height = size.lower().partition("x")
            asked_for |= {"width": int(width), "height": int(height)}
        asked_for |= {} if wanted_codec == AUTO else {"codec": wanted_codec}
        given = {name: value for name, value in asked_for.items() if value is not None}
        basis = there or (SCENES if content == "scenes" else Recipe())
        recipe = Recipe.model_validate(basis.model_dump() | given)
    except (ValueError, ValidationError) as error:
        raise UsageError(f"no clip can be made so: {first_error(error)}", remedy="for example --size 640x360") from None
    if wanted_codec == AUTO or (endpoint and there and not codec):
        tried = tuple(CODECS) if wanted_codec == AUTO else (wanted_codec,)
        recipe = recipe.model_copy(update={"codec": asyncio.run(choose(tried))})
        output.console().print(f"codec {recipe.codec}, which the server decodes", markup=False)
    if recipe.content == "scenes":
        require_measures()
    with progress("clips", count) as show:
        listing = make_videos(
            videos_dir, count, recipe, workers=workers, progress=lambda made: show("clips", made, count)
        )
    wanted = listing.videos[:count]
    if json:
        output.emit(
            {"directory": str(videos_dir), **listing.model_copy(update={"videos": wanted}).model_dump(mode="json")}
        )
    else:
        total = sum(video.bytes for video in wanted)
        output.console().print(f"{len(wanted)} clips, {total} bytes, in {videos_dir}", markup=False)


def reasoner(
    profile: Annotated[str, typer.Option("--profile", help="round-robin or session-affinity.")],
    output_dir: Annotated[Path, typer.Option("--output", help="A directory of this run alone.")],
    videos_dir: Videos = Path("bench-videos"),
    videos: Annotated[int, typer.Option("--videos", min=1, help="Videos of a level.")] = 200,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Of each video.")] = 20,
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", min=1, help="Of each answer, exactly; about scenes at most.")
    ] = 128,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Levels, for example 1,2,4.")] = "1,2,4,8,16",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of all levels.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Fresh videos at each level.")] = False,
    transport: Annotated[str, typer.Option("--video-transport", help="http, data or file-id.")] = "http",
    video_host: Annotated[str, typer.Option("--video-host", help="Where the clips are served (http).")] = "127.0.0.1",
    video_port: Annotated[int, typer.Option("--video-port", min=0, max=65535, help="0: a free one.")] = 0,
    video_base_url: Annotated[str, typer.Option("--video-base-url", help="Where they are served already.")] = "",
    video_public_url: Annotated[
        str, typer.Option("--video-public-url", help="How the endpoint reaches the clips served here (http).")
    ] = "",
    session_header: Annotated[
        str, typer.Option("--session-header", help="That the server takes sessions from.")
    ] = "X-Dynamo-Session-ID",
    load: Annotated[str, typer.Option("--load", help="aiperf (see `bench setup`) or own.")] = "aiperf",
    aiperf_dir: Environment = ENVIRONMENT,
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="That AIPerf wants: a directory or Hub id.")] = "",
    level_summaries: Annotated[
        bool, typer.Option("--level-summaries", help="Show AIPerf's own summary after each level, unchecked.")
    ] = False,
    worker_ids: Annotated[
        bool, typer.Option("--worker-ids", help="It is Dynamo: ask which worker answered (--load own).")
    ] = False,
    weights: Annotated[
        str,
        typer.Option("--weights", help="random or pretrained, of a server that does not say: recorded as your word."),
    ] = "",
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Of a server that does not say how many serve.")
    ] = None,
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    model: Model = MODEL,
    timeout: Timeout = 600,
    json: Json = False,
) -> None:
    """Ask every question of every video at every level, check the run, and write its figures.

    An invalid run (a failed request, a wrong length, a header that did not arrive, …) has no figures of ours: it ends
    with exit code 3, and its records are kept, as are AIPerf's own files (aiperf-not-checked). Where --videos-dir has
    no listing, clips of 30 s at 2 frames a second are made in it first, in a codec that the server decodes. With
    transport http our reasoner must be told to fetch from this server (`--media-allow HOST:PORT`).
    """
    from pydantic import ValidationError

    from cosmos3_serve.bench import plots, report
    from cosmos3_serve.bench.aiperf import find
    from cosmos3_serve.bench.codec import choose_codec
    from cosmos3_serve.bench.conduct import require_possible
    from cosmos3_serve.bench.reasoner import Known, Places, WithAIPerf
    from cosmos3_serve.bench.reasoner import run as run_bench
    from cosmos3_serve.bench.records import Run, Weights, Workload
    from cosmos3_serve.bench.videos import LISTING, Recipe, make_videos
    from cosmos3_serve.reasoner_client.ask import Reasoner

    try:
        workload = Workload.model_validate(
            {
                "profile": profile,
                "videos": videos,
                "questions": questions,
                "output_tokens": output_tokens,
                "concurrency": _levels(concurrency),
                "repeats": repeats,
                "fresh": strict,
                "transport": transport,
                "session_header": session_header,
            }
        )
    except (ValueError, ValidationError) as error:
        raise UsageError(f"no such run: {first_error(error)}") from None
    require_possible(workload)
    if load not in ("aiperf", "own"):
        raise UsageError(f"--load {load!r} is neither aiperf nor own")
    if weights not in ("", "random", "blockworld", "pretrained"):
        raise UsageError(f"--weights {weights!r} is neither random, blockworld nor pretrained")
    report.require_new(output_dir)
    driver = WithAIPerf(find(aiperf_dir, tokenizer), tokenizer, output_dir / report.RAW) if load == "aiperf" else None

    async def run() -> Run:
        async with Reasoner(endpoint, token_env=token_env, model=model, timeout_s=timeout) as asked:
            if not (videos_dir / LISTING).exists():
                recipe, count = Recipe(codec=await choose_codec(asked)), workload.needed()
                with progress("clips", count) as show:
                    await asyncio.to_thread(make_videos, videos_dir, count, recipe,
                                            progress=lambda made: show("clips", made, count))  # fmt: skip
            with progress("questions", workload.videos * workload.questions) as show:
                return await run_bench(
                    asked,
                    os.environ.get(token_env, ""),
                    workload,
                    videos_dir,
                    places=Places(video_host, video_port, video_base_url, video_public_url),
                    known=Known(
                        weights=cast("Weights | None", weights or None), worker_ids=worker_ids, replicas=replicas
                    ),
                    aiperf=driver,
                    progress=show,
                    level_ended=_show_level if level_summaries else lambda label, summary: None,
                )

    found = asyncio.run(run())
    rows = report.write(found, output_dir)
    plots.page([found], plots.draw([found], output_dir), output_dir)
    if json:
        output.emit({"directory": str(output_dir), "valid": True, "levels": [row.model_dump() for row in rows]})
    else:
        print(report.markdown(found, rows), end="")


def _show_level(label: str, summary: str) -> None:
    said = summary.strip() or "(the load generator wrote none)"
    output.console().print(f"{label}: the load generator's own summary, not checked\n{said}", markup=False)


def compare(
    a: Annotated[Path, typer.Argument(help="Directory of a run.")],
    b: Annotated[Path, typer.Argument(help="Directory of the run that is set against it.")],
    output_dir: Annotated[
        Path | None, typer.Option("--output", help="Also write JSON, CSV, Markdown, plots and one HTML page here.")
    ] = None,
    json: Json = False,
) -> None:
    """Set two runs of the same work side by side: ratios, with an interval where the runs have repeats."""
    from cosmos3_serve.bench import compare as side_by_side
    from cosmos3_serve.bench import plots, report

    one, other = report.read(a), report.read(b)
    gains = side_by_side.compare(one, other)
    if output_dir is not None:
        side_by_side.write(one, other, gains, output_dir)
        plots.compared(one, other, gains, output_dir)
    if json:
        output.emit(side_by_side.as_dict(one, other, gains))
    else:
        print(side_by_side.markdown(one, other, gains), end="")


def plan(
    workers: Annotated[int, typer.Option("--workers", min=1, help="Replicas, one GPU each.")] = 8,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Of each video.")] = 20,
    videos: Annotated[
        int | None, typer.Option("--videos", min=1, help="Asked about in all; none given: more than at a time.")
    ] = None,
    output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Of each answer.")] = 128,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Questions in flight: 1,2,4.")] = "1,2,4,8,16",
    videos_held: Annotated[int, typer.Option("--videos-held", min=1, help="By each replica's caches.")] = 1_000_000,
    from_run: Annotated[Path | None, typer.Option("--from", help="Take the costs from this run.")] = None,
    run_workers: Annotated[int, typer.Option("--run-workers", min=1, help="Replicas that the run had.")] = 1,
    cold_ms: Annotated[float | None, typer.Option("--cold-ms", help="First token of a new video, alone.")] = None,
    warm_ms: Annotated[float | None, typer.Option("--warm-ms", help="First token of a known one, alone.")] = None,
    itl_ms: Annotated[
        str | None, typer.Option("--itl-ms", help="Between tokens: 4.0, or by questions in flight: 1:4.0,2:4.3.")
    ] = None,
    json: Json = False,
) -> None:
    """Predict requests per second and TTFT of a fleet, for both routing profiles, from measured costs.

    The costs come from a run of `cosmos3 bench reasoner` (then its own levels are predicted too, and the error is
    said), or from --cold-ms, --warm-ms and --itl-ms. Without either the model is set against the published table of
    eight H200.
    """
    from cosmos3_serve.bench import plan_report

    levels = _levels(concurrency)
    if from_run is None and (cold_ms, warm_ms, itl_ms) == (None, None, None):
        found = plan_report.reference()
    elif from_run is not None:
        found = plan_report.from_run(from_run, run_workers=run_workers, workers=workers, questions=questions,
                                     output_tokens=output_tokens, levels=levels, videos_held=videos_held,
                                     videos=videos)  # fmt: skip
    elif cold_ms is None or warm_ms is None or itl_ms is None:
        raise UsageError("--cold-ms, --warm-ms and --itl-ms go together")
    else:
        found = plan_report.from_costs(cold_ms, warm_ms, itl_ms, workers=workers, questions=questions,
                                       output_tokens=output_tokens, levels=levels, videos_held=videos_held,
                                     videos=videos)  # fmt: skip
    if json:
        output.emit(found.as_dict())
    else:
        print(found.markdown(), end="")


def _levels(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(int(level) for level in text.split(","))
    except ValueError:
        raise UsageError(f"--concurrency {text!r} is no list of numbers", remedy="for example 1,2,4") from None
    if min(levels) < 1 or len(set(levels)) != len(levels):
        raise UsageError("--concurrency wants different levels of at least 1")
    return levels
