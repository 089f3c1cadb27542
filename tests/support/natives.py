"""Retained native outputs on disk, as the two known engines leave them; real media, no weights.

`framework`: absolute server paths in both records, an `inputs` folder. `diffusers`: paths relative to the output root
(our own engine; the end-to-end test uses the real one).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from support.baseline_media import resolve, write_outputs

Layout = Literal["framework", "diffusers"]
REQUEST = "req-1"
BATCH: list[dict[str, Any]] = [
    {"name": "a", "model_mode": "text2image", "prompt": "a red ball", "seed": 1, "resolution": "256"},
    {"name": "b", "prompt": "a blue ball", "num_frames": 5, "resolution": "256", "seed": 2},
    {"name": "c", "model_mode": "reasoner", "prompt": "what is it", "seed": 3},
]
EDGE = {"control_path": "s3://bucket/e.mp4"}


def write_sample(root: Path, sample: dict[str, Any], layout: Layout = "framework", request_id: str = REQUEST) -> Path:
    """One sample's directory below the output root `root`."""
    directory = root / request_id / sample["name"]
    seeded = {"seed": 7, **sample}  # the service draws what is not given
    args = resolve(seeded, str(directory))
    outputs = write_outputs(args, directory, {})
    if layout == "diffusers":
        args["output_dir"] = f"{request_id}/{sample['name']}"
        for output in outputs:
            output["files"] = [Path(file).relative_to(root).as_posix() for file in output["files"]]
    result = {"args": args, "status": "success", "message": None, "stack_trace": None, "outputs": outputs}
    (directory / "sample_args.json").write_text(json.dumps(args))
    (directory / "sample_outputs.json").write_text(json.dumps(result))
    return directory


def write_batch(
    root: Path, batch: list[dict[str, Any]] | None = None, layout: Layout = "framework", request_id: str = REQUEST
) -> Path:
    """The request's directory below `root`."""
    for sample in BATCH if batch is None else batch:
        write_sample(root, sample, layout, request_id)
    return root / request_id


def edit(path: Path, *keys: Any, to: Any) -> None:
    """Change one value deep in a JSON file."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    path.write_text(json.dumps(content))
