"""Each file is decoded once, and a hostile one costs a message, never the client."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.baseline_media import jpeg, mp4, resolve

from cosmos3_serve.errors import IntegrityError
from cosmos3_serve.publication import decode
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.publication.expect import expectation
from cosmos3_serve.publication.media_probe import Expectation


def args(**sample: Any) -> dict[str, Any]:
    return resolve({"name": "a", "resolution": "256", **sample}, "/outputs/r/a")


@pytest.mark.parametrize(
    ("path", "sample", "expected"),
    [
        ("r/a/vision.jpg", {"num_frames": 1}, {"kind": "image", "width": 256, "height": 256}),
        ("r/a/vision.jpg", {"num_frames": 1, "aspect_ratio": "16,9"}, {"width": 320, "height": 192}),
        ("r/a/vision.mp4", {"num_frames": 6}, {"kind": "video", "width": 320, "height": 192, "frames": 9}),
        ("r/a/vision.mp4", {"model_mode": "wam", "domain_name": "av"}, {"frames": 17, "width": None}),
        ("r/a/vision.mp4", {"num_frames": 9, "edge": {}}, {"frames": None, "width": 320}),
        ("r/a/control_edge.mp4", {"num_frames": 9, "edge": {}}, {"kind": "video", "frames": None}),
        ("r/a/preview.png", {"num_frames": 1}, {"kind": "image", "image_format": "PNG", "width": None}),
        ("r/a/reasoner_text.txt", {"model_mode": "reasoner"}, {"kind": "text"}),
    ],
)
def test_expectations_follow_the_resolved_args(path: str, sample: dict[str, Any], expected: dict[str, Any]) -> None:
    found = expectation(path, args(**sample))
    assert found is not None
    assert expected.items() <= found._asdict().items()


def test_the_probe_loads_no_models() -> None:
    code = "import sys, cosmos3_serve.publication.media_probe; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_other_files_are_hashed_but_not_decoded() -> None:
    assert expectation("r/a/output.safetensors", args(num_frames=1)) is None


async def test_good_media_pass_and_tell_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "v.jpg").write_bytes(jpeg(320, 192))
    (tmp_path / "v.mp4").write_bytes(mp4(320, 192, 9))
    (tmp_path / "t.txt").write_text("grün")
    async with Decoder(processes=1) as decoder:
        image = Expectation(kind="image", image_format="JPEG", width=320, height=192)
        video = Expectation(kind="video", width=320, height=192, frames=9)
        proofs = [
            await decoder.check(tmp_path / "v.jpg", image, name="a/v.jpg"),
            await decoder.check(tmp_path / "v.mp4", video, name="a/v.mp4"),
            await decoder.check(tmp_path / "t.txt", Expectation(kind="text"), name="a/t.txt"),
        ]
        assert len(decoder._all) == 1  # one process served all three
    assert [(p.kind, p.width, p.height, p.frames) for p in proofs] == [
        ("image", 320, 192, None),
        ("video", 320, 192, 9),
        ("text", None, None, None),
    ]


def bomb_png(side: int) -> bytes:
    """A valid PNG of side x side black pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, rows = zlib.compressobj(9), io.BytesIO()
    for _ in range(side):
        rows.write(packer.compress(bytes(1 + side // 8)))
    rows.write(packer.flush())
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows.getvalue()) + chunk(b"IEND", b"")


IMAGE = Expectation(kind="image", image_format="JPEG")
BAD = {
    "html page as jpg": (b"<html>502</html>", IMAGE, "does not decode"),
    "cut jpg": (jpeg(256, 256)[:1500], IMAGE, "does not decode"),
    "other size": (
        jpeg(320, 192),
        Expectation(kind="image", image_format="JPEG", width=256, height=256),
        "expected 256",
    ),
    "png called jpg": (bomb_png(64), IMAGE, "is a PNG"),
    "pixel bomb": (bomb_png(16384), Expectation(kind="image", image_format="PNG"), "outside"),
    "too few frames": (mp4(320, 192, 5), Expectation(kind="video", frames=9), "has 5 frames"),
    "too many frames": (mp4(320, 192, 9), Expectation(kind="video", frames=5), "more than 5 frames"),
    "unbound but endless": (mp4(320, 192, 9), Expectation(kind="video", max_frames=8), "more than 8 frames"),
    "cut mp4": (mp4(320, 192, 9)[:700], Expectation(kind="video"), "does not decode"),
    "image as mp4": (jpeg(256, 256), Expectation(kind="video"), "does not decode"),
    "latin-1 text": ("grün".encode("latin-1"), Expectation(kind="text"), "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_media_are_refused(tmp_path: Path, name: str) -> None:
    data, expect, reason = BAD[name]
    (tmp_path / "f").write_bytes(data)
    async with Decoder(processes=1) as decoder:
        with pytest.raises(IntegrityError, match=reason) as caught:
            await decoder.check(tmp_path / "f", expect, name="a/f")
    assert caught.value.stable_code == "media_invalid"
    assert str(tmp_path) not in caught.value.detail


@pytest.mark.parametrize(
    ("script", "reason"),
    [("import time; time.sleep(600)", "longer than"), ("import os; os.abort()", "ends the decoder")],
)
async def test_a_hang_or_crash_costs_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    (tmp_path / "v.jpg").write_bytes(jpeg(256, 256))
    real = decode.asyncio.create_subprocess_exec

    async def hostile(*command: str, **options: Any) -> Any:
        return await real(sys.executable, "-c", script, **options)

    async with Decoder(processes=1, timeout_s=3.0 if "sleep" in script else 30) as decoder:
        with monkeypatch.context() as patch:
            patch.setattr(decode.asyncio, "create_subprocess_exec", hostile)
            decoder.timeout_s = 0.3 if "sleep" in script else 30
            with pytest.raises(IntegrityError, match=reason):
                await decoder.check(tmp_path / "v.jpg", IMAGE, name="a/v.jpg")
        decoder.timeout_s = 60
        assert (await decoder.check(tmp_path / "v.jpg", IMAGE, name="a/v.jpg")).width == 256
