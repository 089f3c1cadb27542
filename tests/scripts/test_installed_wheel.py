"""The wheel, built from the sdist as an index would hold both, in an environment with what the core asks for alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("NPA_", "COSMOS3_", "PYTHON"))}
BATCH = {"model": "Cosmos3-Nano", "samples": [{"name": "a", "model_mode": "text2image", "prompt": "x", "seed": 1}]}


def call(*command: str | Path, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=CLEAN | environ, capture_output=True, text=True, timeout=120)


def build(kind: str, tree: Path, out: Path) -> Path:
    done = call(
        sys.executable,
        "-c",
        f"import sys; from hatchling.build import build_{kind} as b; b(sys.argv[1])",
        out,
        cwd=tree,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = [path for path in out.iterdir() if path.suffix == (".whl" if kind == "wheel" else ".gz")]
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    with tarfile.open(build("sdist", ROOT, out)) as sdist:
        sdist.extractall(out / "unpacked", filter="data")
    (tree,) = (out / "unpacked").iterdir()
    return build("wheel", tree, out)


UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
RUNNING = "{}.{}".format(*sys.version_info)
OTHERS = [version for version in ("3.11", "3.12", "3.13") if version != RUNNING]


def install(wheel: Path, python: str, folder: Path) -> Path:
    """The folder of programs of a fresh environment with the wheel and its requirements, nothing else."""
    assert UV is not None
    assert call(UV, "venv", "--python", python, folder).returncode == 0
    line = [UV, "pip", "install", "--python", folder / "bin/python", "--constraint", "constraints.txt", wheel]
    done = call(*line, "--offline")  # from the cache that setting up this environment has filled
    if done.returncode:
        done = call(*line)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"what the core asks for is neither in uv's cache nor to be had: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if UV is None:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("clean") / "venv"
    yield install(wheel, sys.executable, folder)
    shutil.rmtree(folder)


def test_it_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("cosmos3_serve/")}
    source = ROOT / "src"
    found = {
        path.relative_to(source).as_posix()
        for path in (source / "cosmos3_serve").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names - found <= {"cosmos3_serve/SOURCE_REVISION"}
    assert found - names == set()


def test_the_environment_has_what_the_core_asks_for_and_no_more(installed: Path) -> None:
    code = (
        "import importlib.util as u; print([n for n in ('ray', 'torch', 'diffusers', 'starlette') if u.find_spec(n)])"
    )
    assert call(installed / "python", "-c", code).stdout.strip() == "[]"
    code = "import cosmos3_serve; print(cosmos3_serve.__file__)"
    assert str(installed.parent) in call(installed / "python", "-c", code).stdout


def python_of(version: str) -> str | None:
    """On PATH, of uv, or of pyenv, whose shims answer for the version that is switched to alone."""
    assert UV is not None
    found = call(UV, "python", "find", "--no-python-downloads", "--no-project", version)
    if found.returncode == 0:
        return found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    return next((str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))), None)


def run_client(programs: Path, folder: Path, *, all_of_it: bool = True) -> None:
    (folder / "batch.json").write_text(json.dumps(BATCH))
    dry = ["--input-path", "batch.json", "--output-path", "s3://bucket/out/", "--endpoint", "http://127.0.0.1:9"]
    submission = ["npa", "workbench", "cosmos3", "ray-batch", *dry, "--dry-run"]
    others = (
        ["cosmos3", "version"],
        ["cosmos3", "health", "preflight", "--checks", "s3", "--offline", "--warn-only", "--json"],
        ["cosmos3", "bench", "videos", "--videos-dir", "clips", "--count", "1", "--seconds", "1"],
    )
    for line in (submission, *(others if all_of_it else ())):
        done = call(programs / line[0], *line[1:], cwd=folder)
        assert done.returncode == 0, (line, done.stderr[-2000:])
        assert done.stdout + done.stderr


def test_the_clients_commands_run(installed: Path, tmp_path: Path) -> None:
    run_client(installed, tmp_path)


@pytest.mark.parametrize("version", OTHERS)
def test_they_run_on_the_other_pythons_that_are_promised(wheel: Path, version: str, tmp_path: Path) -> None:
    if UV is None:
        pytest.skip("uv is not installed")
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    run_client(install(wheel, python, tmp_path / "venv"), tmp_path, all_of_it=False)
    shutil.rmtree(tmp_path / "venv")


def test_what_needs_an_extra_says_which_and_how_to_install_it(installed: Path, tmp_path: Path) -> None:
    for line, extra in (
        (["deploy", "render", "--target", "dynamo", "--check", "--output", "x"], "deploy"),
        (["ray-serve", "--engine", "diffusers", "--no-guardrails", "--checkpoint", "tiny"], "diffusers"),
    ):
        done = call(installed / "cosmos3", *line, cwd=tmp_path, NPA_COSMOS3_RAY_TOKEN="t" * 32)
        assert done.returncode == 3, done.stderr[-2000:]
        assert f"pip install '.[{extra}]'" in done.stderr and "Traceback" not in done.stderr
