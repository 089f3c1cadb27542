"""The container files, which nothing here can build: what can be said of them without building is said."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from support.dockerfile import (
    FILES,
    ROOT,
    context,
    copied_from_context,
    health,
    instructions,
    last_stage,
    variables,
    words,
)

from cosmos3_serve.cli import main
from cosmos3_serve.contract.applicable import refuse_ignored
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.generator.engines.framework import interpreter
from cosmos3_serve.service import probe
from cosmos3_serve.settings import TOKEN_ENV, GeneratorSettings, ReasonerSettings

EACH = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
SERVICES = [path for path in FILES if path.stem != "client"]


def test_there_is_an_image_for_each_part() -> None:
    stems = {"client.Dockerfile", "generator-diffusers.Dockerfile", "generator-framework.Dockerfile"}
    assert {path.name for path in FILES} == stems | {"reasoner.Dockerfile"}


@EACH
def test_the_linter_finds_nothing(path: Path) -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_linter_bites() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [hadolint, "-"], input="FROM debian:latest\nRUN cd /x\n", capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "DL3007" in done.stdout


@EACH
def test_every_base_is_a_digest_that_the_builder_gives(path: Path) -> None:
    found = instructions(path.read_text())
    bases = [one.rest.split(" AS ")[0] for one in found if one.word == "FROM"]
    assert set(bases) == {"${BASE_IMAGE}@${BASE_DIGEST}"}
    first = [one.rest for one in found[: [one.word for one in found].index("FROM")] if one.word == "ARG"]
    assert "BASE_DIGEST" in first, "it has no default"
    (image,) = [one for one in first if one.startswith("BASE_IMAGE=")]
    assert ":" not in image, "a repository without a tag"


@EACH
def test_it_runs_as_somebody_without_rights(path: Path) -> None:
    users = [one.rest for one in last_stage(instructions(path.read_text())) if one.word == "USER"]
    assert users == ["1000:1000"], "a number, so that runAsNonRoot can tell"


@EACH
def test_its_labels_name_source_and_base(path: Path) -> None:
    labels = " ".join(one.rest for one in last_stage(instructions(path.read_text())) if one.word == "LABEL")
    for name, value in (
        ("revision", "${SOURCE_SHA}"),
        ("base.digest", "${BASE_DIGEST}"),
        ("base.name", "${BASE_IMAGE}"),
        ("licenses", "Apache-2.0"),
    ):
        assert f'org.opencontainers.image.{name}="{value}"' in labels
    assert ': "${SOURCE_SHA:?' in path.read_text(), "an empty revision stops the build"


@EACH
def test_nothing_secret_is_an_argument_or_a_variable(path: Path) -> None:
    found = instructions(path.read_text())
    said = " ".join(one.rest for one in found if one.word in ("ARG", "ENV", "LABEL"))
    names = re.findall(r"([A-Z][A-Z0-9_]+)(?==|\b)", said)
    assert not [name for name in names if re.search(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", name)]
    assert not [one for one in found if one.word in ("ADD", "VOLUME")]
    assert "COPY . " not in path.read_text()


@EACH
def test_it_copies_only_what_the_context_holds(path: Path) -> None:
    there = set(context(ROOT))
    for source in copied_from_context(instructions(path.read_text())):
        assert source in there or any(name.startswith(source + "/") for name in there), source


def commands(app: typer.Typer) -> dict[str, object]:
    return {g.typer_instance.info.name: g.typer_instance for g in app.registered_groups if g.typer_instance} | {
        c.name: c for c in app.registered_commands
    }


def console_scripts() -> dict[str, str]:
    """Of the project file: what an installed image has, whatever this environment was installed from."""
    scripts: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return scripts


@EACH
def test_what_it_starts_is_a_command_of_ours_that_takes_these_words(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = last_stage(instructions(path.read_text()))
    entry, given = words(found, "ENTRYPOINT"), words(found, "CMD")
    if entry[0] == "tini":
        installed = " ".join(one.rest for one in found if one.word == "RUN")
        assert " tini" in installed
        entry = entry[entry.index("--") + 1 :]
    scripts = console_scripts()
    assert entry[0] in scripts
    app = main.build_npa() if entry[0] == "npa" else main.build()
    line = [*entry[1:], *given]
    for name, value in variables(found).items():
        if name.startswith(("COSMOS3_", "NPA_")):
            monkeypatch.setenv(name, value)
    # In that image the command runs in the framework's interpreter.
    monkeypatch.setattr(interpreter, "runs_here", lambda: path.stem == "generator-framework")
    if "--help" not in line:
        line += ["--dry-run"]
    # The words and the settings alone: token, weights and interpreter come with the container's surroundings.
    monkeypatch.setattr("cosmos3_serve.generator.dry_run.dry_run", settings_alone)
    monkeypatch.setattr("cosmos3_serve.reasoner.dry_run.dry_run", settings_alone)
    assert main.run(app, entry[0], line) == 0, "the command line is refused"
    shown = capsys.readouterr().out
    assert shown
    if path.stem.startswith("generator-"):
        assert json.loads(shown)["engine"] == path.stem.removeprefix("generator-")


def settings_alone(settings: GeneratorSettings | ReasonerSettings) -> dict[str, Any]:
    refuse_ignored(settings)
    return settings.model_dump(mode="json")


@pytest.mark.parametrize("path", SERVICES, ids=lambda p: p.stem)
def test_a_health_check_asks_with_the_token_and_in_time(path: Path) -> None:
    options, command = health(last_stage(instructions(path.read_text())))
    assert command[0] == "cosmos3-probe"
    assert command[1] == ("reasoner" if path.stem == "reasoner" else "generator")
    asked = float(command[command.index("--timeout") + 1])
    assert asked < float(options["timeout"].removesuffix("s")) <= float(options["interval"].removesuffix("s"))
    assert int(options["retries"]) >= 3
    assert options["start-period"] == "30m", "weights may have to be fetched"
    scripts = console_scripts()
    assert scripts["cosmos3-probe"] == "cosmos3_serve.service.probe:console"
    assert callable(probe.console)


def test_the_client_is_not_asked_how_it_is() -> None:
    _, command = health(last_stage(instructions((ROOT / "containers/client.Dockerfile").read_text())))
    assert command == []


def test_the_client_has_the_program_that_makes_the_smoke_tests_video() -> None:
    found = last_stage(instructions((ROOT / "containers/client.Dockerfile").read_text()))
    (installed,) = [one.rest for one in found if one.word == "RUN" and "apt-get install" in one.rest]
    packages = re.search(r"apt-get install ((?:[a-z0-9-]+ ?)+)", installed.replace("--yes", "").replace("  ", " "))
    assert packages is not None and "ffmpeg" in packages[1].split()
    # What the recipes promise of it: the smoke test's own look for the program (reasoner_client/synthetic_video.py).
    page = (ROOT / "recipes/cosmos3-nano-reasoner/perf/README.md").read_text()
    assert "video with FFmpeg" in page and "frames a second with PyAV" in " ".join(page.split())


def test_pinned_versions_are_those_of_the_project() -> None:
    framework = (ROOT / "containers/generator-framework.Dockerfile").read_text()
    assert f"ARG FRAMEWORK_COMMIT={FRAMEWORK_REVISION}\n" in framework
    ray = re.search(r"ray\[serve\]==([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert ray
    assert f"ray[serve]=={ray[1]}" in framework
    vllm = re.search(r"^vllm=([\d.]+)$", (ROOT / "scripts/setup_reasoner.sh").read_text(), re.MULTILINE)
    assert vllm
    assert f"ARG VLLM_VERSION={vllm[1]}\n" in (ROOT / "containers/reasoner.Dockerfile").read_text()


def test_the_framework_image_puts_its_interpreter_where_the_service_looks() -> None:
    assert (
        interpreter.DEFAULT_PYTHON.rpartition("/")[0]
        in (ROOT / "containers/generator-framework.Dockerfile").read_text()
    )


def test_the_entry_is_the_one_of_the_seed() -> None:
    for path in SERVICES:
        if path.stem != "reasoner":
            found = last_stage(instructions(path.read_text()))
            line = " ".join([*words(found, "ENTRYPOINT"), *words(found, "CMD")])
            assert line == "tini -- npa workbench cosmos3 ray-serve --world-size 1 --max-batch-size 4"


def test_no_image_names_a_token() -> None:
    assert not [path.name for path in FILES if TOKEN_ENV in path.read_text()]
