"""Archives as `docker save` writes them, made without docker; and the module that looks through them."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import tarfile
from pathlib import Path

SCAN = Path(__file__).parents[2] / "containers" / "scan.py"
_spec = importlib.util.spec_from_file_location("containers_scan", SCAN)
assert _spec is not None
assert _spec.loader is not None
scan = importlib.util.module_from_spec(_spec)
sys.modules["containers_scan"] = scan
_spec.loader.exec_module(scan)


def put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def image(path: Path, *layers: dict[str, bytes]) -> Path:
    """An archive as `docker save` writes it: a layer is an archive in it, the manifest names them in order."""
    with tarfile.open(path, "w") as archive:
        names = []
        for number, files in enumerate(layers):
            blob = io.BytesIO()
            with tarfile.open(fileobj=blob, mode="w:gz" if number % 2 else "w") as layer:
                for name, content in files.items():
                    put(layer, name, content)
            names.append(f"blobs/sha256/{number:064x}")
            put(archive, names[-1], blob.getvalue())
        put(archive, "manifest.json", json.dumps([{"Config": "c", "RepoTags": ["t"], "Layers": names}]).encode())
    return path
