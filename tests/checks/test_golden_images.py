"""Media count only when their bytes are the declared ones and decode; block-world scenes are looked for in them."""

import hashlib
from pathlib import Path

from PIL import Image
from support.scenes import write_scene

from cosmos3_serve.checks.golden_blockworld import ASKED
from cosmos3_serve.checks.golden_images import verified_media


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
        publish(root, "g/vision.mp4", b"no clip"),
    ]
    (found,) = await verified_media(str(root), {"artifacts": artifacts}, scratch, {})
    assert (found.path, found.width, found.height, found.frames) == ("a/vision.jpg", 32, 16, 1)
    assert (found.sample, found.fault) == ("a", None)
    assert found.sha256 == hashlib.sha256(good).hexdigest()


async def test_what_was_asked_for_is_looked_for_in_every_picture_and_clip(tmp_path: Path) -> None:
    root, scratch = tmp_path / "publication", tmp_path / "scratch"
    scratch.mkdir()

    async def faults(swapped: dict[str, str]) -> dict[str, str | None]:
        artifacts = []
        for name, asked in ASKED.items():
            file = tmp_path / f"drawn.{'jpg' if asked.mode == 'text2image' else 'mp4'}"
            write_scene(file, ASKED[swapped.get(name, name)].scene)
            artifacts.append(publish(root, f"id/{name}/{file.name}", file.read_bytes()))
        found = await verified_media(str(root), {"artifacts": artifacts}, scratch, {})
        assert [medium.frames for medium in found] == [1, 1, 9, 9]
        return {medium.sample: medium.fault for medium in found}

    assert set((await faults({})).values()) == {None}
    found = await faults({"golden-cube": "golden-pair", "golden-pair": "golden-cube"})
    assert [name for name, fault in found.items() if fault] == ["golden-cube", "golden-pair"]
    assert (found["golden-cube"] or "").endswith("and the picture shows a green sphere and a yellow cylinder")
    found = await faults({"golden-slide": "golden-fall", "golden-fall": "golden-slide"})
    assert [name for name, fault in found.items() if fault] == ["golden-slide", "golden-fall"]
    assert (found["golden-slide"] or "").endswith("and the clip shows a blue cube that falls")
