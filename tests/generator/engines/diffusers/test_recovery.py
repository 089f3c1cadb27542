"""What this engine really leaves on disk qualifies for recovery: every mode, its own records, media as encoded."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.engine import generate, make_job

from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch
from cosmos3_serve.errors import Refusal

REQUEST = "lost-1"
FEW: dict[str, Any] = {"num_steps": 1, "resolution": "256"}


@pytest.fixture(scope="module")
def batch(engine, root, files) -> list[dict[str, Any]]:
    """Five samples of one request, generated; the same samples as a client would have asked for them."""
    samples = [
        {"name": "still", "prompt": "a red ball", "model_mode": "text2image", "guidance": 3.0, **FEW},
        {"name": "clip", "prompt": "on", "num_frames": 6, "fps": 8, **FEW},
        {"name": "moves", "prompt": "go", "model_mode": "wam", "domain_name": "pusht", "action_chunk_size": 4, **FEW},
        {"name": "from-image", "prompt": "on", "num_frames": 5, "model_mode": "image2video", **FEW},
        {"name": "edges", "prompt": "x", "num_frames": 5, "max_frames": 5, "model_mode": "text2video", **FEW},
    ]
    samples[4]["num_video_frames_per_chunk"] = 5  # the default is five times the clip
    local = [dict(sample) for sample in samples]
    for name, key in (("moves", "vision_path"), ("from-image", "vision_path")):
        index = next(i for i, sample in enumerate(samples) if sample["name"] == name)
        samples[index][key], local[index][key] = "s3://bucket/first.png", str(files["image.png"])
    samples[4]["edge"], local[4]["edge"] = (
        {"control_path": "s3://bucket/e.mp4"},
        {"control_path": str(files["edge.mp4"])},
    )
    for number, fields in enumerate(local):
        name = fields.pop("name")
        (result,) = generate(engine, make_job(root, name, request_id=REQUEST, seed=40 + number, **fields))
        assert result.error is None, result.error
        samples[number]["seed"] = 40 + number
    return samples


@pytest.fixture
def recover(batch, root, tmp_path):
    (tmp_path / "batch.json").write_text(json.dumps({"samples": batch, "request_id": REQUEST}))

    def run(**options: Any) -> Any:
        given = {"input_path": str(tmp_path / "batch.json"), "source": str(root), "output_path": str(tmp_path / "out")}
        return recover_batch(RecoverOrder(journal_dir=tmp_path / "journal", **(given | options)))

    return run


def test_everything_that_the_engine_left_is_recovered(recover, batch, root: Path) -> None:
    manifest = recover().manifest
    assert (manifest["status"], manifest["missing"]) == ("recovered", [])
    assert manifest["seeds"] == {sample["name"]: 40 + number for number, sample in enumerate(batch)}
    assert len(manifest["recovery"]["natives"]) == 2 * 5 + 6
    results = {result["args"]["name"]: result for result in manifest["structured_outputs"]}
    assert results["clip"]["args"]["num_frames"] == 9, "rounded up as the framework does"
    assert results["moves"]["outputs"][0]["content"]["action"]
    assert results["from-image"]["args"]["vision_path"] == "s3://bucket/first.png"
    assert results["edges"]["args"]["edge"]["control_path"] == "s3://bucket/e.mp4"
    frames = {proof["path"].split("/", 1)[1]: proof["frames"] for proof in manifest["media"]}
    assert (frames["moves/vision.mp4"], frames["clip/vision.mp4"], frames["still/vision.jpg"]) == (5, 9, None)


def test_another_request_for_the_same_outputs_is_refused(recover, batch, tmp_path: Path) -> None:
    for change, code in (
        ({"seed": 41}, "native_wrong_seed"),
        ({"guidance": 4.0}, "native_wrong_args"),
        ({"prompt": "a blue ball"}, "native_wrong_args"),
        ({"model_mode": "text2video", "num_frames": 5}, "native_wrong_mode"),
    ):
        changed = [{**batch[0], **change}, *batch[1:]]
        (tmp_path / "other.json").write_text(json.dumps({"samples": changed, "request_id": REQUEST}))
        with pytest.raises(Refusal) as caught:
            recover(input_path=str(tmp_path / "other.json"))
        assert caught.value.stable_code == code
