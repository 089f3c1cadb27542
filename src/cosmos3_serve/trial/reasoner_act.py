"""The quickstart's second act: the reasoner answers questions about a video that the generator has just made.

Real vLLM in its own interpreter, a real fleet of one replica on this machine. What is shown is the way of a question:
streamed, and from the second one on at a replica that holds the video already. With the block-world checkpoint each
answer is compared with what is measured in the clip; those of random weights are words without sense.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from cosmos3_serve.blockworld.words import agrees
from cosmos3_serve.errors import ContractViolation, StartRefused
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.blockworld import BLOCKWORLD

if TYPE_CHECKING:
    from cosmos3_serve.reasoner_client.ask import Answer

LABELS = {BLOCKWORLD: "a small model of drawn scenes", "tiny": "random weights"}  # of both acts' checkpoints
NOISE = ("What happens in this video?", "Which colour is seen most?")  # asked of random weights
MAX_TOKENS = 24
SHOWN_HEADERS = ("x-cosmos3-session", "x-cosmos3-media", "x-cosmos3-replica")
VLLM_PYTHON_ENV = "COSMOS3_VLLM_PYTHON"

Say = Callable[[str], None]


def missing() -> str | None:
    """Why there can be no second act here and how to get it, one line; None if there can. Blocking, some 100 ms."""
    from cosmos3_serve.reasoner.engine.interpreter import find_interpreter

    try:
        find_interpreter(ReasonerSettings.load(environ=engine_environ()).vllm_python)
    except StartRefused as refused:
        return f"{refused.detail}; run `make setup-reasoner`, or name a Python that has vLLM in {VLLM_PYTHON_ENV}"
    return None


def run(
    workdir: Path,
    cache: Path,
    checkpoint: str,
    video: Path,
    workers: int,
    environ: Mapping[str, str],
    say: Say,
    out: Console,
) -> dict[str, Any]:
    """Start the reasoner, ask, stop it; returns the object `reasoner` of `--json`.

    Args:
        cache: folder of the tiny checkpoint.
        checkpoint: `blockworld` or `tiny`.
        video: asked about; a verified artifact of the first act.
        workers: replicas.
        environ: variables over the caller's.

    Raises:
        ServiceFailure: the service does not start; its log is quoted.
        ContractViolation: an answer does not show that the replica saw, and then still held, the video.
        Interrupted: a signal; everything has ended by then.
    """
    from cosmos3_serve.trial.children import Children
    from cosmos3_serve.trial.serve_command import ReasonerServeCommand
    from cosmos3_serve.trial.shown import questions

    started = time.monotonic()
    with Children() as children:
        say(f"reasoner service: vLLM, checkpoint {checkpoint} ({LABELS[checkpoint]}), {workers} replica(s)")
        service = ReasonerServeCommand(
            _flags(workdir, cache, checkpoint, workers), {**environ, **engine_environ()}, workdir / "logs"
        )
        children.start(service.launch, service.stop)
        ready = service.wait_ready().ready
        say(f"ready at {escape(str(ready['endpoint']))}; about {escape(str(video))}:")
        session = f"quickstart-{secrets.token_hex(4)}"
        asked = questions(video) if checkpoint == BLOCKWORLD else [(question, None) for question in NOISE]
        answers = asyncio.run(
            _ask(video, asked, ready["weights"], session, service.url, {service.token_env: service.token}, out)
        )
        check(answers)
        say("stopping")
    return {
        "video": str(video),
        "model": ready["model"],
        "weights": ready["weights"],
        "routing": ready["routing"],
        "replicas": len(ready["replicas"]),
        "session": session,
        "answers": [
            {**answer.as_dict(), "measured": measured, "right": measured and agrees(answer.text, measured)}
            for answer, (_, measured) in zip(answers, asked, strict=True)
        ],
        "seconds": round(time.monotonic() - started, 1),
    }


def engine_environ() -> dict[str, str]:
    """The one setting of the reasoner that is the machine's and not a service's: where vLLM is."""
    named = os.environ.get(VLLM_PYTHON_ENV, "")
    return {VLLM_PYTHON_ENV: named} if named else {}


def verdict(said: str, measured: str | None, weights: str) -> str:
    """What is told beside an answer: how it compares with what is measured, where something is."""
    if measured is None:
        return "random weights" if weights == "random" else "nothing was measured in the clip"
    return "as measured" if agrees(said, measured) else f"measured: {measured}"


def _flags(workdir: Path, cache: Path, checkpoint: str, workers: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", "0", "--model", checkpoint, "--workers", str(workers)),
        *("--routing", "session-affinity", "--drain-timeout-s", "5"),
        *("--store-dir", str(workdir / "media"), "--cache-dir", str(cache)),
    ]


async def _ask(
    video: Path,
    asked: Sequence[tuple[str, str | None]],
    weights: str,
    session: str,
    endpoint: str,
    environ: Mapping[str, str],
    out: Console,
) -> list[Answer]:
    from cosmos3_serve.reasoner_client.ask import Reasoner, for_terminal

    def show(piece: str) -> None:
        out.print(for_terminal(piece).replace("\n", " "), end="", markup=False)

    answers = []
    async with Reasoner(endpoint, environ=environ) as reasoner:
        url = await reasoner.video_url(str(video))
        for question, measured in asked:
            out.print(f"\n  > {question}\n  < ", end="", markup=False)
            answer = await reasoner.ask(question, url, session=session, max_tokens=MAX_TOKENS, on_text=show)
            headers = ", ".join(f"{name}: {answer.facts.get(name, '-')}" for name in SHOWN_HEADERS)
            told = f"{verdict(answer.text, measured, weights)}; {answer.video_tokens} tokens of video; {headers}"
            out.print(f"\n    [dim]({escape(told)})[/]")
            answers.append(answer)
    out.print()
    return answers


def check(answers: Sequence[Answer]) -> None:
    """
    Raises:
        ContractViolation: the first answer is not that of a new session that brought its video, or a later one is not
            that of a session at home with a video that its replica holds.
    """
    home = answers[0].facts.get("x-cosmos3-replica")
    for number, answer in enumerate(answers):
        if answer.video_tokens < 1:
            raise ContractViolation(f"answer {number + 1} counts no tokens of the video")
        wanted = ("new", "miss", home) if number == 0 else ("hit", "hit", home)
        found = tuple(answer.facts.get(f"x-cosmos3-{name}") for name in ("session", "media", "replica"))
        if found != wanted or home is None:
            raise ContractViolation(
                f"answer {number + 1}: session, media and replica are {found}, expected were {wanted}"
            )
