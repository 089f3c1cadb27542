"""Valid videos of an exact size: noise as H.264 in MP4, then a `free` box that fills it up."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
from measure.result import demand

MIB = 1024 * 1024
WIDTH, HEIGHT, FPS = 640, 360, 30


def noise_video(size: int, seed: int) -> bytes:
    """`size` bytes of MP4; another `seed`, another content. Frames are added until the next would not fit."""
    random = np.random.default_rng(seed)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "28"}
        stream.codec_context.thread_count = 1
        written = 0
        largest = 0
        while written + 3 * largest < size - 65536:
            picture = random.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                written += packet.size
                largest = max(largest, packet.size)
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return filled(out.getvalue(), size)


def moving_video(seconds: float, seed: int, *, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A textured picture that drifts, as H.264 in MP4 at 30 frames a second; another `seed`, another content."""
    random = np.random.default_rng(seed)
    # A window that moves over a larger picture: cheap to make, and every frame is another one.
    small = random.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    picture = small.repeat(32, axis=0).repeat(32, axis=1)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "28", "bf": "0"}
        stream.codec_context.thread_count = 1
        for number in range(round(seconds * FPS)):
            down, across = (2 * number) % height, (3 * number) % width
            shown = np.ascontiguousarray(picture[down : down + height, across : across + width])
            frame = av.VideoFrame.from_ndarray(shown, format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return out.getvalue()


def filled(data: bytes, size: int) -> bytes:
    """An MP4 with a last box of type `free`, which every reader skips, to the wanted size."""
    rest = size - len(data)
    demand(rest >= 8, f"a video of {len(data)} bytes does not fit into {size}")
    return data + rest.to_bytes(4, "big") + b"free" + bytes(rest - 8)


def about(data: bytes, model: str, words: str = "What happens in this video?", **fields: Any) -> dict[str, Any]:
    """A question about a video, as a chat body with a data URL."""
    url = "data:video/mp4;base64," + base64.b64encode(data).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": words}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}


def write(folder: Path, name: str, body: dict[str, Any]) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(body))
    return str(path)
