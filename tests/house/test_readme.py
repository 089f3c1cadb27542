"""The README's code runs as written: marked blocks, each in the same fresh directory, in order.

The block that asks a reasoner is run here against stub replicas, and against real vLLM where the fleet's tests are.
"""

import asyncio
import re
from pathlib import Path

import pytest
from support.gateway import TOKEN, video, world
from support.readme import README, ROOT, ask_as_written, blocks, run

BLOCKS = blocks("run")


def test_something_is_marked_to_run() -> None:
    assert BLOCKS
    for mark in ("run", "run: reasoner"):
        assert README.count(f"<!-- {mark} -->") == len(blocks(mark)), "a marked block is neither bash nor python"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs_as_written(number: int, tmp_path: Path) -> None:
    run(*BLOCKS[number], tmp_path)


async def test_the_reasoner_is_asked_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    async with world(tmp_path, replicas=2) as here:
        said = await asyncio.to_thread(ask_as_written, here.url, TOKEN, folder, video())
        first, second = (line for line in said if line and line[-1].startswith("replica-"))
        assert (first[:2], second[:2]) == (["new", "miss"], ["hit", "hit"])
        assert first[2] == second[2]
        assert [len(stub.asked) for stub in here.replicas if stub.asked] == [2]
        assert sum(len(stub.encoded) for stub in here.replicas) == 1


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", README)) <= targets


def test_every_command_named_exists() -> None:
    from cosmos3_serve.cli import main

    app = main.build()
    known = {c.name for c in app.registered_commands} | {g.typer_instance.info.name for g in app.registered_groups}
    assert set(re.findall(r"^cosmos3 ([a-z-]+)", README, re.MULTILINE)) <= known
