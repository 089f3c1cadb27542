"""The README's code runs as written: marked blocks, each in the same fresh directory, in order.

The block that asks a reasoner is run here against stub replicas, and against real vLLM where the fleet's tests are.
"""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gateway import TOKEN, video, world
from support.guardrail_hub import REVISION_1_0, engine_repos, guardrail_repos
from support.hub import stub_hub
from support.readme import README, ROOT, ask_as_written, blocks, run

from cosmos3_serve.cli import quickstart
from cosmos3_serve.contract.wire import DIFFUSERS_REVISION

BLOCKS = blocks("run")


def test_something_is_marked_to_run() -> None:
    assert BLOCKS
    for mark in ("run", "run: reasoner", "run: guarded diffusers", "run: guarded framework"):
        assert README.count(f"<!-- {mark} -->") == len(blocks(mark)), "a marked block is neither bash nor python"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs_as_written(number: int, tmp_path: Path) -> None:
    run(*BLOCKS[number], tmp_path)


@pytest.fixture
def entitled(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Surroundings of a guarded start: a stub Hub with doubles of the gated files, and packages that can be found."""
    for name in ("cosmos_guardrail", "better_profanity", "retinaface", "torchvision", "nltk", "peft", "cv2"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").touch()
    with stub_hub({**guardrail_repos(), **engine_repos()}) as hub:
        yield {
            **hub.environ(),
            "NPA_COSMOS3_RAY_TOKEN": "a-token-of-the-readme",
            "NPA_IMAGE_SOURCE_SHA": "a" * 40,
            "NPA_COSMOS3_RAY_PORT": "0",
            "HF_HOME": str(tmp_path / "hf"),
            "COSMOS3_CACHE_DIR": str(tmp_path / "cache"),
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(tmp_path / "packages")])),
        }


def test_the_guarded_start_passes_its_checks_as_written(tmp_path: Path, entitled: dict[str, str]) -> None:
    ((language, code),) = blocks("run: guarded diffusers")
    entitled["COSMOS3_GUARDRAIL_REVISION"] = REVISION_1_0
    said = json.loads(run(language, code, tmp_path, entitled))
    assert (said["engine"], said["guardrails"], said["guardrail_revision"]) == ("diffusers", True, REVISION_1_0)
    assert [one["state"] for one in said["files"]] == ["to fetch"] * 3
    with pytest.raises(AssertionError, match="access_token_missing"):
        run(language, code, tmp_path, entitled | {"HF_TOKEN": ""})


def test_the_framework_engines_start_is_a_command_that_its_interpreter_would_get(
    tmp_path: Path, entitled: dict[str, str]
) -> None:
    """The framework is not installed here: a script in its interpreter's place tells what it was asked to run."""
    ((language, code),) = blocks("run: guarded framework")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nif [ "$1" = -c ]; then echo "[]"; else echo "$@ $NPA_COSMOS3_RAY_GUARDRAILS"; fi\n')
    python.chmod(0o755)
    assert "/opt/framework/bin/python" in code
    said = run(language, code.replace("/opt/framework/bin/python", str(python)), tmp_path, entitled)
    assert said.split() == ["-m", "cosmos3_serve.cli.main", "ray-serve", "--dry-run", "true"]


def test_the_seeds_commands_are_told_first_and_their_line_makes_them_work(tmp_path: Path) -> None:
    use = README.partition("## Use it")[2].partition("\n## ")[0]
    line = re.search(r"^export COSMOS3_ENGINE=diffusers .*$", use, re.MULTILINE)
    assert line and use.index("ray-serve --world-size 1 --max-batch-size 4") < line.start() < use.index("health")
    assert f"COSMOS3_EXPECTED_REVISION={DIFFUSERS_REVISION}" in line[0]
    entitled = {"NPA_COSMOS3_RAY_TOKEN": "a-token-of-the-readme", "NPA_IMAGE_SOURCE_SHA": "a" * 40}
    rest = f"NPA_COSMOS3_RAY_CHECKPOINT=tiny NPA_COSMOS3_RAY_PORT=0 NPA_COSMOS3_RAY_OUTPUT_DIR={tmp_path}"
    code = (
        f"{line[0]} {rest}\nnpa workbench cosmos3 ray-serve --world-size 1 --max-batch-size 4 --no-guardrails --dry-run"
    )
    assert json.loads(run("bash", code, tmp_path, entitled))["engine"] == "diffusers"


def test_every_guarded_example_comes_before_the_unguarded_one() -> None:
    for page in ("README.md", "docs/operations.md", "recipes/cosmos3-generator/README.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "--no-guardrails" not in "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)), page
    assert quickstart.NEXT.index("COSMOS3_GUARDRAIL_REVISION") < quickstart.NEXT.index("--no-guardrails")


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
