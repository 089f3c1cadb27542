"""`cosmos3 reasoner …`: serve the reasoner, ask it about a video, test it, see its sessions."""

from __future__ import annotations

import asyncio
import json as jsonlib
import secrets
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.options import settings_options
from cosmos3_serve.settings import REASONER_TOKEN_ENV, ReasonerSettings

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
    group = typer.Typer(
        name="reasoner",
        help="Questions about videos, answered by vLLM replicas that already know them.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (serve, ask, smoke, sessions):
        group.command(command.__name__)(command)
    app.add_typer(group)


@settings_options(ReasonerSettings)
def serve(
    flags: dict[str, Any],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the settings, start nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout once ready.")] = False,
) -> None:
    """Start the reasoner on Ray Serve: gateways, and one vLLM replica per worker.

    It runs until SIGTERM or Ctrl-C, then drains. The bearer token comes from COSMOS3_REASONER_TOKEN, or from the file
    that COSMOS3_REASONER_TOKEN_FILE names.
    """
    settings = ReasonerSettings.load(flags)
    if dry_run:
        output.emit(settings.model_dump(mode="json"))
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
    from cosmos3_serve.client.reasoner import Answer, Reasoner

    fields = {"cosmos3": {"explain": True}} if explain else {}
    name = session or f"ask-{secrets.token_hex(8)}"
    show = (lambda piece: None) if json else _write

    async def run() -> list[Answer]:
        answers = []
        async with Reasoner(endpoint, token_env=token_env, model=model, timeout_s=timeout) as reasoner:
            url = await reasoner.video_url(video)
            for question in questions:
                if not json and len(questions) > 1:
                    output.console().print(f"> {question}", markup=False, style="dim")
                answer = await reasoner.ask(question, url, session=name, max_tokens=max_tokens, on_text=show, **fields)
                show("\n")
                if explain and not json:
                    output.console().print(jsonlib.dumps(answer.explanation, indent=2), markup=False, style="dim")
                answers.append(answer)
        return answers

    answers = asyncio.run(run())
    if json:
        output.emit({"video": video, "model": model, "session": name, "answers": [a.as_dict() for a in answers]})


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def smoke(
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    model: Model = MODEL,
    timeout: Timeout = 600,
    json: Json = False,
) -> None:
    """Make a 30-second video, ask about it, check that the answer saw it.

    The last line starts with `Smoke test passed` and holds the model's description; the exit code is not 0 otherwise.
    """
    from cosmos3_serve.client.reasoner import Reasoner
    from cosmos3_serve.client.reasoner_smoke import smoke as run_smoke

    def say(text: str) -> None:
        output.console().print(text, markup=False, style="dim")

    async def run() -> dict[str, Any]:
        async with Reasoner(endpoint, token_env=token_env, model=model, timeout_s=timeout) as reasoner:
            return await run_smoke(reasoner, say=say)

    found = asyncio.run(run())
    if json:
        output.emit({"passed": True, **found})
    else:
        print(f"Smoke test passed: {found['description']}")


def sessions(
    key: Annotated[str, typer.Option("--key", help="Explain where this session's next question would go.")] = "",
    endpoint: Endpoint = "",
    token_env: TokenEnv = REASONER_TOKEN_ENV,
    timeout: Timeout = 30,
    json: Json = False,
) -> None:
    """Print the sessions that the service knows, or what would become of one."""
    from cosmos3_serve.client.reasoner import Reasoner

    async def run() -> dict[str, Any]:
        async with Reasoner(endpoint, token_env=token_env, timeout_s=timeout) as reasoner:
            if key:
                return await reasoner.get("/v1/sessions/explain", key=key)
            return await reasoner.get("/v1/sessions")

    output.emit(asyncio.run(run()))
