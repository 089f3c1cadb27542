"""Images count only when their bytes are the declared ones and PIL opens them."""

import hashlib
from pathlib import Path

from PIL import Image

from cosmos3_serve.checks.golden_images import verified_images


def publish(root: Path, name: str, data: bytes, *, sha256: str = "", size: int | None = None) -> dict:
    path = root / "artifacts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"path": name, "bytes": size or len(data), "sha256": sha256 or hashlib.sha256(data).hexdigest()}


async def test_only_what_is_whole_and_declared_counts(tmp_path: Path) -> None:
    Image.new("RGB", (32, 16)).save(tmp_path / "x.jpg")
    good = (tmp_path / "x.jpg").read_bytes()
    root, scratch = tmp_path / "publication", tmp_path / "scratch"
    scratch.mkdir()
    artifacts = [
        publish(root, "a/vision.jpg", good),
        publish(root, "b/vision.jpg", good[: len(good) // 2]),
        publish(root, "c/vision.jpg", b"no picture"),
        publish(root, "d/vision.jpg", good, sha256="0" * 64),
        publish(root, "e/vision.jpg", good, size=5),
        publish(root, "f/sample_args.json", b"{}"),
    ]
    (found,) = await verified_images(str(root), {"artifacts": artifacts}, scratch, {})
    assert (found.path, found.width, found.height) == ("a/vision.jpg", 32, 16)
    assert found.sha256 == hashlib.sha256(good).hexdigest()
