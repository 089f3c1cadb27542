"""`cosmos3 reasoner …`: serve the reasoner, ask it about a video, test it, see its sessions."""

from __future__ import annotations

import asyncio
import json as jsonlib
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.options import settings_options
from cosmos3_serve.errors import Cosmos3Error, UsageError
from cosmos3_serve.settings import REASONER_TOKEN_ENV, ReasonerBatchSettings, ReasonerSettings

Endpoint = Annotated[
    str,
    typer.Option("--endpoint", help="Address of the service (env: COSMOS3_REASONER_ENDPOINT; http://127.0.0.1:8000)."),
]
TokenEnv = Annotated[str, typer.Option("--token-env", help="Variable that holds the bearer token.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds without a byte of an answer.")]
Model = Annotated[str, typer.Option("--model", help="Served name of the model.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
MODEL = "nvidia/cosmos3-nano-reasoner"


def register(app: typer.Typer) -> None:
    text = "Questions about videos, answered by vLLM replicas that already know them."
    app.add_typer(command_group("reasoner", text, serve=serve, ask=ask, batch=batch, smoke=smoke, sessions=sessions))


@settings_options(ReasonerSettings)
def serve(
    flags: dict[str, Any],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Make the checks of a start, print the settings.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout once ready.")] = False,
) -> None:
    """Start the reasoner on Ray Serve: gateways, and one vLLM replica per worker.

    It runs until SIGTERM or Ctrl-C, then drains. The bearer token comes from COSMOS3_REASONER_TOKEN, or from the file
    that COSMOS3_REASONER_TOKEN_FILE names.
    """
    settings = ReasonerSettings.load(flags)
    if dry_run:
        from cosmos3_serve.reasoner.dry_run import dry_run as run_dry

        output.emit(run_dry(settings))
        return
    from cosmos3_serve.reasoner.serve import run_reasoner

    run_reasoner(settings, on_ready=_ready_as_json if json else _ready_in_words)


def _ready_as_json(ready: Mapping[str, Any]) -> None:
    # One line: whoever started the service reads one line and knows where it is.
    print(jsonlib.dumps(ready, sort_keys=True), flush=True)


def _ready_in_words(ready: Mapping[str, Any]) -> None:
    output.console().print(
        f"ready at {ready['endpoint']}: {ready['model']}, {len(ready['replicas'])} replica(s), {ready['routing']},"
        f" weights {ready['weights']}",
        markup=False,
    )


def ask(
    video: Annotated[str, typer.Argument(help="A file, or an https://, s3:// or file-id: URL.")],
    questions: Annotated[list[str], typer.Argument(help="One or more; all of one session.")],
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    model: Model = MODEL,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Tokens of each answer.")] = None,
    session: Annotated[str, typer.Option("--session", help="Name of the session; default: a new one.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Tell which frames were used, and where.")] = False,
    timeout: Timeout = 600,
    json: Json = False,
) -> None:
    """Ask about a video; the answers are printed as they come.

    A file is uploaded once, whatever the number of questions.
    """
    from cosmos3_serve.reasoner_client.ask import Answer, Reasoner

    fields: dict[str, Any] = {"cosmos3": {"explain": True}} if explain else {}
    name = session or f"ask-{secrets.token_hex(8)}"
    calls: dict[str, Any] = {"on_text": (lambda piece: None) if json else _write, "on_wait": _waits}
    for question in questions:
        if not question.strip():  # before the video travels
            raise UsageError("a question is blank", remedy="ask something")

    async def run() -> list[Answer]:
        answers = []
        async with Reasoner(endpoint, token_env=token_env, model=model, timeout_s=timeout) as reasoner:
            url = await reasoner.video_url(video)
            for question in questions:
                if not json and len(questions) > 1:
                    output.console().print(f"> {question}", markup=False, style="dim")
                answer = await reasoner.ask(question, url, session=name, max_tokens=max_tokens, **calls, **fields)
                calls["on_text"]("\n")
                if explain and not json:
                    output.console().print(jsonlib.dumps(answer.explanation, indent=2), markup=False, style="dim")
                answers.append(answer)
        return answers

    answers = asyncio.run(run())
    if json:
        output.emit({"video": video, "model": model, "session": name, "answers": [a.as_dict() for a in answers]})


def _write(piece: str) -> None:
    from cosmos3_serve.reasoner_client.ask import for_terminal

    sys.stdout.write(for_terminal(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


def _waits(why: Cosmos3Error, seconds: float) -> None:
    output.console().print(f"{why.detail}; asking again in {seconds:g} s", markup=False, style="dim")


@settings_options(ReasonerBatchSettings)
def batch(
    flags: dict[str, Any],
    input_path: Annotated[
        str,
        typer.Option(
            "--input-path", help="Questions by line (.jsonl): a file, folder or glob, s3://bucket/key or a prefix/."
        ),
    ] = "",
    output_path: Annotated[str, typer.Option("--output-path", help="s3://bucket/prefix/ or an absolute folder.")] = "",
    run_id: Annotated[str, typer.Option("--run-id", help="Recorded in the provenance.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the questions, ask nothing.")] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Questions without an answer do not make the command fail.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notices.")] = False,
    json: Json = False,
) -> None:
    """Ask the questions of a file and publish the answers; prints the index.

    Each line is a request of OpenAI's batch format; a video is named by its s3:// address, which the service reads.
    The same command continues after Ctrl-C or a crash, on any number of machines (`cosmos3 queue`).
    """
    from cosmos3_serve.cli import queue

    flags["endpoint"] = [text for text in flags["endpoint"] or () if text.strip()]
    settings = ReasonerBatchSettings.load({name: value for name, value in flags.items() if value not in ("", [])})
    order = {"input_path": input_path, "output_path": output_path, "dry_run": dry_run, "allow_partial": allow_partial}
    queue.work_on(settings, queue.reasoner_work(settings, run_id), order, quiet)


def smoke(
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    model: Model = MODEL,
    video_host: Annotated[str, typer.Option("--video-host", help="Where the video is served.")] = "127.0.0.1",
    video_port: Annotated[int, typer.Option("--video-port", min=0, max=65535, help="0: a free one.")] = 0,
    video_public_url: Annotated[
        str, typer.Option("--video-public-url", help="How the service reaches it; default: it is sent as data.")
    ] = "",
    timeout: Timeout = 600,
    json: Json = False,
) -> None:
    """Make a 30-second video, ask about it, check that the answer saw it.

    The last line starts with `Smoke test passed` and holds the model's description; the exit code is not 0 otherwise.
    """
    from cosmos3_serve.reasoner_client.ask import Reasoner
    from cosmos3_serve.reasoner_client.smoke import smoke as run_smoke

    def say(text: str) -> None:
        output.console().print(text, markup=False, style="dim")

    @contextmanager
    def served(video: Path) -> Iterator[str]:
        from cosmos3_serve.bench.media_server import serve_file

        with serve_file(video, host=video_host, port=video_port):
            yield f"{video_public_url.rstrip('/')}/{video.name}"

    async def run() -> dict[str, Any]:
        async with Reasoner(endpoint, token_env=token_env, model=model, timeout_s=timeout) as reasoner:
            return await run_smoke(reasoner, serve=served if video_public_url else None, say=say, on_wait=_waits)

    found = asyncio.run(run())
    if json:
        output.emit({"passed": True, **found})
    else:
        print(f"Smoke test passed: {found['description']}")


def sessions(
    key: Annotated[str, typer.Option("--key", help="Explain where this session's next question would go.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Sessions of one page.")] = 100,
    after: Annotated[str, typer.Option("--after", help="The `last_id` of the page before.")] = "",
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    timeout: Timeout = 30,
    json: Json = False,
) -> None:
    """List the sessions of this token's tenant, or explain what would become of one.

    The list is the fleet's, whichever gateway answers; keys are shown as digests.
    """
    from cosmos3_serve.reasoner_client.ask import Reasoner, for_terminal

    async def run() -> dict[str, Any]:
        async with Reasoner(endpoint, token_env=token_env, timeout_s=timeout) as reasoner:
            if key:
                return await reasoner.get("/v1/sessions/explain", key=key)
            return await reasoner.get("/v1/sessions", limit=str(limit), **({"after": after} if after else {}))

    found = asyncio.run(run())
    if json:
        output.emit(found)
    else:
        for line in _explained(found) if key else _listed(found):
            print(for_terminal(line))


def _listed(found: Mapping[str, Any]) -> Iterator[str]:
    rows = found.get("data") or []
    if not rows:
        yield "no sessions" + (": the service routes round robin" if found.get("profile") == "round-robin" else "")
    for row in rows:
        left = row.get("expires_in_s")
        state = f"{row.get('in_flight')} in flight" if left is None else f"idle, forgotten in {left:.0f} s"
        yield f"{row.get('id')}  {row.get('replica')}  {state}"
    if found.get("has_more"):
        yield f"there are more: --after {found.get('last_id')}"


def _explained(found: Mapping[str, Any]) -> Iterator[str]:
    replica = (found.get("replica") or {}).get("id")
    yield f"its next question: {found.get('outcome')}, {replica or 'no replica would take it'}"
    home = (found.get("home") or {}).get("id")
    left = found.get("expires_in_s")
    yield f"home: {home or 'none'}" + ("" if left is None else f", forgotten in {left:.0f} s")
    for step in found.get("steps") or []:
        yield f"  {step}"
    for row in found.get("replicas") or []:
        live = row.get("live_sessions")
        told = "" if live is None else f", {live} live session(s)"
        yield f"{row.get('id')}: {row.get('state')}, {row.get('load')} request(s){told}"
