"""Look through an image's layers for what may not be in an image: weights, credentials, repositories of our own.

    docker save --output image.tar IMAGE && python containers/scan.py image.tar

Every layer is read, also what a later one removes. Findings are printed as `LAYER PATH: reason`, never with content.
Standard library only, so that it runs wherever an image is built. Exit code: 0 nothing found, 3 findings, 2 unreadable.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

MIB = 1024 * 1024
BIG = 50 * MIB

# Formats that hold nothing but weights; and formats that also hold small things of programs.
WEIGHTS = (".safetensors", ".ckpt", ".gguf")
PERHAPS_WEIGHTS = (".pt", ".pth", ".bin", ".onnx", ".npz", ".engine", ".plan", ".h5", ".msgpack")
# Where programs have no business with large files.
DATA = ("/outputs", "/opt/npa-model-cache", "/opt/npa", "/var/lib/cosmos3", "/home", "/tmp", "/build")
CREDENTIALS = re.compile(
    r"(^|/)(\.env(\..*)?|\.netrc|_netrc|\.pgpass|\.git-credentials|\.pypirc|\.huggingface/token|huggingface/token"
    r"|\.aws/credentials|\.docker/config\.json|\.kube/config|\.ssh/.+|id_(rsa|dsa|ecdsa|ed25519)|\.ngc/config"
    r"|ray_auth_token|tokens?(\.txt)?|run/secrets/.+)$",
    re.IGNORECASE,
)
KEY = re.compile(r"\.(pem|key|p12|pfx)$", re.IGNORECASE)
# Certificates of authorities and the test data of packages are no secrets of ours.
KEYS_ALLOWED = re.compile(r"^(etc/ssl|etc/ca-certificates|usr/share|usr/lib)/|site-packages/|dist-packages/")
OWN_REPOSITORY = re.compile(r"^(build|src|app)(/.*)?/\.git(/|$)")


class Entry(NamedTuple):
    """A file as a layer lists it; `path` without the leading slash."""

    path: str
    size: int


def reason(entry: Entry) -> str | None:
    """Why a file may not be in an image; None: it may."""
    path, name = entry.path, PurePosixPath(entry.path).name
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in WEIGHTS:
        return "a file of weights"
    if suffix in PERHAPS_WEIGHTS and entry.size > MIB:
        return f"{entry.size} bytes in a format of weights"
    if entry.size > BIG and f"/{path}".startswith(tuple(place + "/" for place in DATA)):
        return f"{entry.size} bytes where data lies"
    if CREDENTIALS.search(path):
        return "a name of credentials"
    if KEY.search(name) and not KEYS_ALLOWED.search(path):
        return "a key"
    if OWN_REPOSITORY.search(path):
        return "a repository"
    return None


def entries(layer: tarfile.TarFile) -> Iterator[Entry]:
    """Files of a layer; an empty file holds nothing, a whiteout only removes."""
    for member in layer:
        path = member.name.removeprefix("./").lstrip("/")
        if member.isreg() and member.size and not PurePosixPath(path).name.startswith(".wh."):
            yield Entry(path, member.size)


def layers(image: IO[bytes]) -> Iterator[tuple[str, list[Entry]]]:
    """Name and files of every layer of what `docker save` writes, OCI layout or the older one.

    Raises:
        ValueError: it is no such archive, or a layer that its manifest names is not in it.
    """
    try:
        with tarfile.open(fileobj=image) as archive:
            manifest = archive.extractfile("manifest.json")
            assert manifest is not None
            wanted = [name for one in json.load(manifest) for name in one["Layers"]]
            for name in wanted:
                blob = archive.extractfile(name)
                assert blob is not None
                with tarfile.open(fileobj=blob) as layer:
                    yield name, list(entries(layer))
    except (tarfile.TarError, KeyError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"this is not what `docker save` writes ({type(error).__name__})") from None


def findings(found: Iterable[tuple[str, list[Entry]]]) -> tuple[int, list[str]]:
    """Files that were looked at, and a line for each that may not be there."""
    seen, lines = 0, []
    for layer, files in found:
        seen += len(files)
        lines += [f"{layer} {entry.path}: {why}" for entry in files if (why := reason(entry)) is not None]
    return seen, lines


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("scan.py: give one archive that `docker save` wrote", file=sys.stderr)
        return 2
    try:
        with Path(argv[0]).open("rb") as image:
            seen, lines = findings(layers(image))
        if not seen:
            raise ValueError("there is no file in any layer")
    except (OSError, ValueError) as error:
        print(f"scan.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines) if lines else f"{seen} files, nothing that may not be there")
    return 3 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
