"""A clip on its way to a CPU replica: as the file, as a copy, or as frames that were decoded once, without loss.

vLLM takes frames as `data:video/jpeg;base64,F1,F2,…` with their times in `media_io_kwargs`, each opened by its content.
The tiny checkpoint with random weights, one CPU replica. Needs the engine's Python (`make setup-reasoner`). A way that
makes another prompt makes the run invalid; so does one without loss that makes another answer.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import httpx
import psutil
from measure.fleet import CHAT, Fleet
from measure.result import RESULTS, Section, demand, quiet, report
from measure.videos import moving_video

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.media.colour import describe, to_rgb
from cosmos3_serve.media.read import sniffed_as, video_record
from cosmos3_serve.media.video import VideoFacts, read_video
from cosmos3_serve.reasoner.engine.interpreter import find_interpreter
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.normalise import copy_video
from cosmos3_serve.reasoner.media.sampling import loaded_frames, spread
from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER
from cosmos3_serve.settings import ReasonerSettings

LIMITS = MediaLimits()
SIZES = ((640, 360), (1280, 720))
FRAMES: dict[str, dict[str, Any]] = {
    "BMP": {},
    "PNG": {"compress_level": 1},
    "WEBP": {"lossless": True, "method": 0, "quality": 0},
}
NOTE = (
    "{seconds:g} s at 30 fps, H.264, first question about the clip, median of {rounds} in turns. Examined: CPU of the "
    "process that reads media, which decodes every frame, and of copying the clip or of converting and encoding the "
    "frames that the model uses. Replica: CPU of the engine's processes from the request to its answer of one token: "
    "receiving, decoding, preparing and computing. Body: what the replica is sent. Difference: the largest of the five "
    "most likely first tokens' logprobs to the file's. Drawn clips are flat areas, textured ones have grain like a "
    "camera's."
)
Sent = tuple[str, dict[str, Any], float]  # URL, options of the loader, CPU seconds it took


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--short", action="store_true", help="one short clip, two rounds")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--max-load", type=float, default=3.0, help="load average a core above which nothing is run")
    chosen = options.parse_args(argv)
    try:
        find_interpreter(ReasonerSettings.load().vllm_python)
    except StartRefused as refused:
        print(f"SKIPPED, nothing measured: {refused.detail}; {refused.remedy}", file=sys.stderr)
        return 0

    def measure(base: Path) -> list[Section]:
        quiet(chosen.max_load)
        with Fleet({"COSMOS3_REASONER_WORKERS": "1"}, base) as service:
            seconds, rounds = (2.0, 2) if chosen.short else (10.0, 5)
            kinds = {"drawn": moving_video, "textured": textured}
            return [
                section(
                    service, base, f"{kind}, {width}x{height}", make(seconds, 7, width=width, height=height), rounds
                )
                for width, height in (SIZES[:1] if chosen.short else SIZES)
                for kind, make in kinds.items()
            ]

    with tempfile.TemporaryDirectory() as base:
        return report("reasoner-frames", lambda: measure(Path(base)), chosen.out, about=__doc__ or "")


def section(service: Fleet, base: Path, title: str, clip: bytes, rounds: int) -> Section:
    path = base / "clip.mp4"
    path.write_bytes(clip)
    ways: dict[str, Callable[[], Sent]] = {"the file": lambda: whole(path), "a copy": lambda: copied(path, base)}
    ways |= {f"frames, {name}": lambda name=name: frames(path, name) for name in FRAMES}  # type: ignore[misc]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(-1, rounds):  # the first round warms up
        for way in ways if number % 2 else reversed(ways):
            url, loading, cpu_s = ways[way]()
            row = {"examined": cpu_s, **asked(service, url, loading, number)}
            if number >= 0:
                found[way].append(row)
    plain = found["the file"][0]
    rows: list[list[str]] = [
        ["sent", "examined, s", "replica, s", "both, s", "to the file's", "body, MB", "difference"]
    ]
    figures: dict[str, Any] = {}
    for way, runs in found.items():
        demand(all(run["prompt"] == plain["prompt"] for run in runs), f"{way}: another prompt")
        apart = max(abs(a - b) for run in runs for a, b in zip(run["logprobs"], plain["logprobs"], strict=True))
        demand(apart == 0 or way == "a copy", f"{way}: another answer")
        media, replica = (median(run[part] for run in runs) for part in ("examined", "replica"))
        figures[way] = {"examined_s": media, "replica_s": replica, "mb": runs[0]["mb"], "apart": apart}
        ratio = (media + replica) / sum(figures["the file"][part] for part in ("examined_s", "replica_s"))
        rows.append([way, f"{media:.2f}", f"{replica:.2f}", f"{media + replica:.2f}", f"{ratio:.2f}",
                     f"{runs[0]['mb']:.1f}", f"{apart:.2g}"])  # fmt: skip
    facts = examined(path)
    seconds = facts.frames / (facts.header_rate or 30.0)
    return Section(f"CPU on the way: {title}", NOTE.format(seconds=seconds, rounds=rounds), rows, figures)


def asked(service: Fleet, url: str, loading: dict[str, Any], number: int) -> dict[str, Any]:
    replica = service.replicas[0]
    engine = psutil.Process(replica["engine"]["engine_pid"])
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "What happens?"}]
    body = {
        "model": MODEL_NAME, "messages": [{"role": "user", "content": content}], "max_completion_tokens": 1,
        "temperature": 0, "logprobs": True, "top_logprobs": 5, "return_token_ids": True,
        # Any option makes another item of it: nothing that was cached is used.
        "media_io_kwargs": {"video": {**loading, "min_frames": 4 - 1e-9 * (number + 2)}},
    }  # fmt: skip
    before = cpu(engine)
    said = httpx.post(
        replica["url"] + CHAT, json=body, headers={SECRET_HEADER: service.secret}, timeout=600, trust_env=False
    )
    time.sleep(0.2)  # what the answer has left to do
    demand(said.status_code == 200, f"HTTP {said.status_code}: {said.text[:200]}")
    told = said.json()
    (first,) = told["choices"][0]["logprobs"]["content"]
    return {
        "replica": cpu(engine) - before,
        "mb": len(url) / 1e6,
        "prompt": told["prompt_token_ids"],
        "logprobs": [top["logprob"] for top in first["top_logprobs"]],
    }


def cpu(engine: psutil.Process) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in (engine, *engine.children(recursive=True)))


def examined(path: Path, sink: Callable[[Any, VideoFacts], None] | None = None) -> VideoFacts:
    return read_video(path, sniffed_as(path, "video"), LIMITS.reading(every_frame=True), sink)


def whole(path: Path) -> Sent:
    began = time.process_time()
    examined(path)
    spent = time.process_time() - began
    return as_data("video/mp4", path.read_bytes()), {}, spent


def copied(path: Path, base: Path) -> Sent:
    began, out = time.process_time(), base / "copy.mp4"
    facts, sniffed = examined(path), sniffed_as(path, "video")
    record = video_record(facts, sniffed, describe(facts.first))
    copy_video(path, out, sniffed, record, facts.timeline(), ["to compare"], LIMITS)
    spent = time.process_time() - began
    return as_data("video/mp4", out.read_bytes()), {}, spent


def frames(path: Path, name: str) -> Sent:
    """The frames that the model uses, of the size they have: resized ones would be resized twice."""
    from PIL import Image

    facts = examined(path)
    rate = facts.header_rate or 30.0
    wanted = set(spread(facts.frames, loaded_frames(facts.frames, rate, {})))
    texts: list[str] = []
    times: list[float] = []

    def take(frame: Any, so_far: VideoFacts) -> None:
        if so_far.decoded - 1 in wanted:
            held = io.BytesIO()
            Image.fromarray(to_rgb(frame, describe(frame))).save(held, name, **FRAMES[name])
            texts.append(base64.b64encode(held.getvalue()).decode())
            times.append(float(frame.pts * frame.time_base))

    began = time.process_time()
    examined(path, take)
    spent = time.process_time() - began
    loading = {
        "num_frames": -1, "fps": 1000, "frames_indices": [round(at * 1000) for at in times],
        "total_num_frames": round(facts.frames / rate * 1000), "duration": facts.frames / rate,
        "do_sample_frames": False,
    }  # fmt: skip
    return "data:video/jpeg;base64," + ",".join(texts), loading, spent


def textured(seconds: float, seed: int, *, width: int, height: int) -> bytes:
    """A camera's pan over a rough surface, with grain."""
    import av
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(seed)
    surface = np.zeros((height + 128, width + 256, 3), np.float32)
    for step in (4, 16, 64):
        coarse = chance.integers(0, 255, (surface.shape[0] // step, surface.shape[1] // step, 3), np.uint8)
        surface += np.asarray(Image.fromarray(coarse).resize(surface.shape[1::-1], Image.Resampling.BICUBIC)) / 3
    held = io.BytesIO()
    with av.open(held, "w", format="mp4") as out:
        stream: Any = out.add_stream("libx264", rate=30, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(round(seconds * 30)):
            top, left = number % 128, 2 * number % 256
            shown = surface[top : top + height, left : left + width] + chance.normal(0, 2, (height, width, 1))
            out.mux(stream.encode(av.VideoFrame.from_ndarray(shown.clip(0, 255).astype(np.uint8), format="rgb24")))
        out.mux(stream.encode(None))
    return held.getvalue()


def as_data(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


if __name__ == "__main__":
    raise SystemExit(main())
