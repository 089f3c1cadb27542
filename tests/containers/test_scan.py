"""The look through an image's layers, on archives made here: what `docker save` writes, with and without findings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.image_archive import SCAN, image, scan


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", SCAN, path], capture_output=True, text=True, timeout=60)


def test_an_innocent_image_passes(tmp_path: Path) -> None:
    files = {"opt/venv/bin/python": b"x", "etc/ssl/certs/ca.pem": b"x", "opt/venv/lib/torch/lib/libtorch.so": b"x"}
    done = run(image(tmp_path / "i.tar", files, {"opt/venv/a.pth": b"import site"}))
    assert (done.returncode, done.stdout) == (0, "4 files, nothing that may not be there\n")


def test_what_a_later_layer_removes_is_still_found(tmp_path: Path) -> None:
    path = image(tmp_path / "i.tar", {"build/.env": b"A=1"}, {"build/.wh..env": b"", "opt/x": b"x"})
    done = run(path)
    assert done.returncode == 3
    assert "build/.env: a name of credentials" in done.stdout
    assert "A=1" not in done.stdout


@pytest.mark.parametrize(
    ("path", "size", "found"),
    [
        ("opt/m/model.safetensors", 10, "weights"),
        ("a/x.ckpt", 10, "weights"),
        ("a/x.pt", 2 * 1024 * 1024, "format of weights"),
        ("a/x.pth", 30, None),
        ("outputs/dump", 60 * 1024 * 1024, "where data lies"),
        ("opt/venv/lib/libtorch_cuda.so", 900 * 1024 * 1024, None),
        ("var/lib/cosmos3/.cache/huggingface/token", 37, "credentials"),
        ("run/secrets/anything", 5, "credentials"),
        ("var/lib/cosmos3/.aws/credentials", 5, "credentials"),
        ("root/.ssh/id_ed25519", 5, "credentials"),
        ("opt/app/tls.key", 5, "a key"),
        ("etc/ssl/private/snakeoil.key", 5, None),
        ("opt/venv/lib/python3.12/site-packages/certifi/cacert.pem", 5, None),
        ("build/.git/config", 5, "a repository"),
        ("opt/cosmos3/cosmos-framework/.git/HEAD", 5, None),
        ("opt/venv/lib/python3.12/site-packages/cosmos3_serve/service/tokens.py", 5, None),
    ],
)
def test_the_rules(path: str, size: int, found: str | None) -> None:
    said = scan.reason(scan.Entry(path, size))
    assert said is None if found is None else found in str(said)


@pytest.mark.parametrize("content", [b"", b"not a tar", None])
def test_what_is_no_image_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "i.tar"
    if content is not None:
        path.write_bytes(content)
    done = run(path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_image_without_files_proves_nothing(tmp_path: Path) -> None:
    assert run(image(tmp_path / "i.tar", {})).returncode == 2
