"""The build script with stand-ins for docker and syft: what it refuses, what it runs, in which order."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.dockerfile import ROOT
from support.image_archive import image

DIGEST = "sha256:" + "ab" * 32
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
DOCKER = """#!/bin/sh
echo "docker $*" >>"$FAKE_LOG"
case $1 in save) cp "$FAKE_IMAGE" "$3" ;; esac
"""


class Builder:
    """A clean checkout of the container files, with programs that only note what they are asked."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.tree, self.log = folder / "tree", folder / "log"
        shutil.copytree(ROOT / "containers", self.tree / "containers")
        for name in ("pyproject.toml", "hatch_build.py", "constraints.txt"):
            shutil.copy(ROOT / name, self.tree)
        (self.tree / "src").mkdir()
        (self.tree / "src" / "a.py").write_text("")
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
            subprocess.run([*GIT, *words], cwd=self.tree, check=True)
        self.env = {**os.environ, "FAKE_LOG": str(self.log), "FAKE_IMAGE": str(image(folder / "i.tar", files))}
        for name, text in (("DOCKER", DOCKER), ("SYFT", '#!/bin/sh\necho "syft $*" >>"$FAKE_LOG"\n')):
            program = folder / name.lower()
            program.write_text(text)
            program.chmod(0o755)
            self.env[name] = str(program)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        script = self.tree / "containers" / "build.sh"
        return subprocess.run(["sh", script, *arguments], env=self.env, capture_output=True, text=True, timeout=60)

    def did(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def test_a_build_is_scanned_and_listed(tmp_path: Path) -> None:
    builder = Builder(tmp_path, {"opt/x": b"x"})
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=builder.tree, capture_output=True, text=True).stdout.strip()
    done = builder.run("client", DIGEST, "example/client:1")
    assert done.returncode == 0, done.stderr
    build, save, sbom = builder.did()
    assert f"BASE_DIGEST={DIGEST}" in build
    assert f"SOURCE_SHA={head}" in build
    assert "client.Dockerfile" in build
    assert save.startswith("docker save")
    assert "spdx-json=" in sbom
    assert "client.spdx.json" in done.stdout


def test_an_image_with_weights_gets_no_sbom(tmp_path: Path) -> None:
    builder = Builder(tmp_path, {"opt/model.safetensors": b"x"})
    done = builder.run("reasoner", DIGEST, "example/reasoner:1")
    assert done.returncode == 3
    assert "model.safetensors: a file of weights" in done.stdout
    assert not [line for line in builder.did() if line.startswith("syft")]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("client", DIGEST),
        ("nobody", DIGEST, "t"),
        ("client", "3.12-slim", "t"),
        ("client", "sha256:" + "A" * 64, "t"),
        ("client", "sha256:" + "a" * 63, "t"),
    ],
)
def test_what_is_not_pinned_is_refused_before_docker_is_asked(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    builder = Builder(tmp_path, {"opt/x": b"x"})
    assert builder.run(*arguments).returncode == 2
    assert builder.did() == []


def test_a_changed_checkout_is_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path, {"opt/x": b"x"})
    (builder.tree / "src" / "a.py").write_text("changed = True\n")
    done = builder.run("client", DIGEST, "t")
    assert done.returncode == 2
    assert "changes" in done.stderr
