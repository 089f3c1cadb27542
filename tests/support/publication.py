"""A publication on disk with real media, for tests of what reads publications."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import av
from PIL import Image, ImageDraw

from cosmos3_serve.contract.batch import EngineRecord
from cosmos3_serve.contract.provenance import Provenance
from cosmos3_serve.contract.records import Artifact, SampleRecord

REQUEST = "batch-1"
IMAGE = {"model_mode": "text2image", "num_frames": 1, "fps": 24.0}
VIDEO = {"model_mode": "text2video", "num_frames": 9, "fps": 8.0}


def picture(size: tuple[int, int], step: int = 0) -> Image.Image:
    image = Image.new("RGB", size, (40 + 20 * (step % 9), 90, 160))
    ImageDraw.Draw(image).ellipse((8 * step, 8, 8 * step + size[0] // 3, size[1] - 8), fill=(240, 200, 60))
    return image


def write_video(path: Path, frames: int, size: tuple[int, int] = (96, 64), rate: int = 8) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for step in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_image(picture(size, step))))
        container.mux(stream.encode(None))


def sample(name: str, base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One SampleOutputs object; pass `status`, `message`, `files`, `content` to change the outcome."""
    keys = ("status", "message", "files", "content")
    outcome = {key: changes.pop(key) for key in keys if key in changes}
    args = {"name": name, "prompt": f"the prompt of {name}", "seed": 17, **base, **changes}
    primary = "vision.jpg" if args["num_frames"] == 1 else "vision.mp4"
    files = [f"{REQUEST}/{name}/{file}" for file in outcome.get("files", [primary])]
    status = outcome.get("status", "success")
    outputs = [{"content": outcome.get("content", {}), "files": files}] if status == "success" else []
    return {"args": args, "status": status, "message": outcome.get("message"), "stack_trace": None, "outputs": outputs}


def write_publication(root: Path, results: list[dict[str, Any]], **changes: Any) -> Provenance:
    """Write `artifacts/…`, `request.json`, `response.json` and `provenance.json` below `root`; `changes` replace fields
    of the provenance."""
    artifacts = []
    for result in results:
        args = result["args"]
        for path in [file for output in result["outputs"] for file in output["files"]]:
            target = root / "artifacts" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".mp4":
                write_video(target, args["num_frames"])
            else:
                picture((96, 64)).save(target, quality=90)
            data = target.read_bytes()
            artifacts.append(
                Artifact(sample=args["name"], path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            )
    root.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for part in ("request", "response"):
        text = json.dumps({"request_id": REQUEST, "samples": [result["args"] for result in results]}).encode()
        (root / f"{part}.json").write_bytes(text)
        hashes[f"{part}_sha256"] = hashlib.sha256(text).hexdigest()
    fields: dict[str, Any] = {
        **hashes,
        "status": "completed",
        "endpoint": "http://127.0.0.1:8000",
        "input_path": "batch.json",
        "output_path": str(root),
        "model": "Cosmos3-Nano",
        "sample_names": [result["args"]["name"] for result in results],
        "batch_size": len(results),
        "backend": "diffusers-ray-serve",
        "request_id": REQUEST,
        "guardrails": False,
        "max_batch_size": 4,
        "framework_revision": "diffusers-0.42.1",
        "server_source_revision": "0" * 40,
        "artifacts": artifacts,
        "structured_outputs": results,
        "published_uri": str(root),
        "provenance_uri": str(root / "provenance.json"),
        "engine": EngineRecord(engine="diffusers", revision="diffusers-0.42.1"),
        "weights": "random",
        "seeds": {result["args"]["name"]: result["args"]["seed"] for result in results},
        "samples": [
            SampleRecord(name=r["args"]["name"], state="succeeded" if r["status"] == "success" else "failed", code=None)
            for r in results
        ],
    }
    provenance = Provenance(**(fields | changes))
    (root / "provenance.json").write_bytes(provenance.to_bytes())
    return provenance
