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


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of programs of a fresh environment with the wheel and its requirements, nothing else."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    assert call(uv, "venv", "--python", sys.executable, folder).returncode == 0
    install = [uv, "pip", "install", "--python", folder / "bin/python", "--constraint", "constraints.txt", wheel]
    done = call(*install, "--offline")  # from the cache that setting up this environment has filled
    if done.returncode:
        done = call(*install)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(
            f"the core's requirements can be had neither from uv's cache nor from an index: {done.stderr[-500:]}"
        )
    assert done.returncode == 0, done.stderr[-2000:]
    yield folder / "bin"
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


def test_the_clients_commands_run(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "batch.json").write_text(json.dumps(BATCH))
    dry = ["ray-batch", "--input-path", "batch.json", "--output-path", "s3://bucket/out/", "--endpoint", "http://127.0.0.1:9",
           "--dry-run"]  # fmt: skip
    for line in (
        ["cosmos3", "version"],
        ["npa", "workbench", "cosmos3", *dry],
        ["cosmos3", "health", "preflight", "--checks", "s3", "--offline", "--warn-only", "--json"],
        ["cosmos3", "bench", "videos", "--videos-dir", "clips", "--count", "1", "--seconds", "1"],
    ):
        done = call(installed / line[0], *line[1:], cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr[-2000:])
        assert done.stdout + done.stderr


def test_what_needs_an_extra_says_which_and_how_to_install_it(installed: Path, tmp_path: Path) -> None:
    for line, extra in (
        (["deploy", "render", "--target", "dynamo", "--check", "--output", "x"], "deploy"),
        (["ray-serve", "--engine", "diffusers", "--no-guardrails", "--checkpoint", "tiny"], "diffusers"),
    ):
        done = call(installed / "cosmos3", *line, cwd=tmp_path, NPA_COSMOS3_RAY_TOKEN="t" * 32)
        assert done.returncode == 3, done.stderr[-2000:]
        assert f"pip install '.[{extra}]'" in done.stderr and "Traceback" not in done.stderr
