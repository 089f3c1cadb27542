"""The engine from job to files: what it says of itself, what it writes, and how each failure ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from support.engine import components, generate, make_engine, make_job
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import CheckpointUnavailable, GuardrailsUnavailable, SampleCode, StartRefused
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.generator.engines.diffusers.loader import load_components, pick_device
from cosmos3_serve.generator.engines.inputs import Wanted
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.generator.guardrails.record import CheckRecord
from cosmos3_serve.weights.checkpoint import Checkpoint

T2I: dict[str, Any] = {"prompt": "x", "model_mode": "text2image", "num_steps": 1}


def frames_of(path: Path) -> tuple[np.ndarray, float]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(stream)]), float(stream.average_rate)


# ---- start ----------------------------------------------------------------------------------------------------------


def test_info(engine):
    info = engine.info()
    assert (info.engine, info.backend, info.weights) == ("diffusers", "diffusers-ray-serve", "random")
    assert info.revision == "diffusers-0.42.1"
    assert info.checkpoint_digest == tiny_checkpoint().digest
    assert (info.device, info.dtype, info.max_num_seqs) == ("cpu", "float32", 8)
    assert set(info.supported_modes) == {
        "text2image", "text2video", "image2video", "video2video", "wam", "forward_dynamics", "inverse_dynamics"
    }  # fmt: skip
    assert info.guardrails == {
        "configured": False, "applied": False, "checks": [{"check": "media", "decision": "not_run"}],
    }  # fmt: skip
    engine.check()


def test_a_media_check_that_does_not_load_refuses_before_anything_is_loaded(tmp_path, monkeypatch):
    def refuse(files):
        raise GuardrailsUnavailable("no filter", code="guardrail_load_failed")

    monkeypatch.setattr("cosmos3_serve.generator.engines.diffusers.engine.make_guard", refuse)
    monkeypatch.setattr(
        "cosmos3_serve.generator.engines.diffusers.engine.load_components", lambda *_: pytest.fail("loaded")
    )
    with pytest.raises(GuardrailsUnavailable, match="no filter"):
        DiffusersEngine(tiny_checkpoint(), output_root=tmp_path, guardrails=None)


def test_absent_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StartRefused, match="no CUDA device"):
        pick_device("cuda")
    assert pick_device("auto").type == "cpu"


@pytest.mark.parametrize("content", [{}, {"hidden_size": "many"}])
def test_a_foreign_checkpoint_is_refused_without_its_path(tmp_path, content):
    for part in ("transformer", "vae", "text_tokenizer"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointUnavailable) as caught:
        load_components(tmp_path, torch.device("cpu"))
    assert str(tmp_path) not in caught.value.detail


def test_jobs_and_results_import_without_torch():
    code = "import sys, cosmos3_serve.generator.engines.job; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- files ----------------------------------------------------------------------------------------------------------


def test_image_sample(engine, root):
    job = make_job(root, "image", image_save_quality=50, **T2I)
    [result] = generate(engine, job)
    assert result.error is None and result.outputs is not None
    assert result.outputs["status"] == "success" and result.outputs["stack_trace"] is None
    assert result.outputs["outputs"] == [{"content": {}, "files": ["r/image/vision.jpg"]}]
    with Image.open(root / "r/image/vision.jpg") as image:
        assert image.size == (256, 256)
    assert set(result.phases) == {"prepare", "inference", "decode", "encode"}
    assert result.guardrails["configured"] is False
    written = json.loads((root / "r/image/sample_outputs.json").read_text())
    assert written == result.outputs
    assert json.loads((root / "r/image/sample_args.json").read_text()) == result.outputs["args"]
    assert not [p for p in (root / "r/image").iterdir() if p.name.startswith(".")]


def test_args_are_written_before_the_work(engine, root, monkeypatch):
    job = make_job(root, "early", **T2I)
    seen: list[list[str]] = []
    monkeypatch.setattr(
        engine._network, "prefill", lambda ids: seen.append([p.name for p in Path(job.output_dir).iterdir()]) or 1 / 0
    )
    [result] = generate(engine, job)
    assert result.error is not None and result.error.code is SampleCode.ENGINE_FAILED
    assert seen == [["sample_args.json"]]


def test_no_absolute_path_leaves_the_engine(engine, root, files):
    staged = root / ".cosmos3" / "staging" / "r" / "vision.png"
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(Path(files["image.png"]).read_bytes())
    job = make_job(root, "paths", prompt="x", vision_path=str(staged), num_frames=5, num_steps=1)
    [result] = generate(engine, job)
    assert result.outputs is not None
    assert result.outputs["args"]["vision_path"] == ".cosmos3/staging/r/vision.png"
    assert result.outputs["args"]["output_dir"] == "r/paths"
    for name in ("sample_args.json", "sample_outputs.json"):
        assert str(root) not in (root / "r/paths" / name).read_text()


def test_video_has_the_frames_and_rate_that_were_asked_for(engine, root):
    generate(engine, make_job(root, "v", prompt="x", model_mode="text2video", num_frames=2, fps=12, num_steps=1))
    content, fps = frames_of(root / "r/v/vision.mp4")
    assert content.shape == (5, 192, 320, 3) and fps == 12  # frames round up to 4k + 1


def test_conditioned_frames_show_the_input(engine, root, files):
    """A tiny random VAE reconstructs nothing, so compare with what it makes of the input alone."""
    job = make_job(root, "a", prompt="x", vision_path=files["image.png"], num_frames=5, num_steps=2)
    [item] = engine.denoise([job], lambda *_: None, lambda key: False)
    image = np.asarray(Image.open(files["image.png"]).convert("RGB"))[None]
    encoded = engine._tools.conditioner.encode(image, 5)
    assert torch.equal(item.latents.latents[:, :, 0], encoded[:, :, 0])
    assert not torch.equal(item.latents.latents[:, :, 1], encoded[:, :, 1])


@pytest.mark.parametrize("mode", ["wam", "forward_dynamics", "inverse_dynamics"])
def test_action_sample(engine, root, files, mode):
    extra = {"action_path": files["actions.json"]} if mode == "forward_dynamics" else {}
    job = make_job(
        root, mode, prompt="x", model_mode=mode, vision_path=files["wide.mp4"], domain_name="Bridge_Orig_Lerobot ",
        action_chunk_size=4, num_steps=1, **extra,
    )  # fmt: skip
    [result] = generate(engine, job)
    assert result.outputs is not None, result.error
    [output] = result.outputs["outputs"]
    action = output["content"]["action"]
    assert (len(action), len(action[0])) == (4, 10) and np.isfinite(action).all()
    if mode == "forward_dynamics":
        assert np.allclose(action, [[0.01 * (i + j) for j in range(10)] for i in range(4)], atol=1e-6)
    content, _ = frames_of(root / output["files"][0])
    assert content.shape == (5, 160, 320, 3)  # 400x200 scaled to fit 320x192, cut to whole latents


@pytest.mark.parametrize(
    "hint, chunk, frames",
    [("edge", 9, 6), ("blur", 5, 5), ("depth", 5, 5), ("seg", 5, 5), ("wsm", 5, 5)],  # one fills its chunk up
)
def test_each_hint_gives_its_control_back(engine, root, files, small_canvas, hint, chunk, frames):
    job = make_job(
        root,
        f"t-{hint}",
        prompt="x",
        num_steps=1,
        num_video_frames_per_chunk=chunk,
        max_frames=frames,
        **{hint: {"control_path": files[f"{hint}.mp4"]}},
    )
    [result] = generate(engine, job)
    assert result.outputs is not None, result.error
    assert result.outputs["outputs"][0]["files"] == [f"r/t-{hint}/vision.mp4", f"r/t-{hint}/control_{hint}.mp4"]
    control, _ = frames_of(root / f"r/t-{hint}/control_{hint}.mp4")
    given = Wanted(files[f"{hint}.mp4"], "x", size=(160, 96)).read().frames
    assert np.abs(control.astype(int) - given[:frames]).mean() < 6
    assert len(frames_of(root / f"r/t-{hint}/vision.mp4")[0]) == frames


def test_transfer_of_a_still_image(engine, root, files):
    job = make_job(
        root,
        "still",
        prompt="x",
        num_frames=1,
        aspect_ratio="1,1",
        num_steps=1,
        edge={"control_path": files["control.png"]},
    )
    [result] = generate(engine, job)
    assert result.outputs is not None, result.error
    assert result.outputs["outputs"][0]["files"] == ["r/still/vision.jpg", "r/still/control_edge.jpg"]


# ---- failure --------------------------------------------------------------------------------------------------------


def test_bad_media_fails_its_sample_only(engine, root, files, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    good = {"prompt": "x", "vision_path": files["image.png"], "num_frames": 5, "num_steps": 1}
    jobs = [
        make_job(root, "g1", **good),
        make_job(root, "bad", **{**good, "vision_path": str(tmp_path / "bad.png")}),
        make_job(root, "g2", **good),
    ]
    results = generate(engine, *jobs)
    assert [r.error.code.value if r.error else "ok" for r in results] == ["ok", "input_invalid", "ok"]
    assert results[1].error is not None and not results[1].error.retryable
    assert "vision_path" in results[1].error.message
    record = json.loads((root / "r/bad/sample_outputs.json").read_text())
    assert record["status"] == "error" and record["stack_trace"] is None and record["outputs"] == []


@pytest.mark.parametrize(
    "change, says",
    [
        ({"seed": None}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"num_outputs": 2}, "num_outputs"),
        ({"enable_sound": True}, "sound"),
        ({"native_prompt_upsampling": True}, "prompt"),
        ({"model_mode": "reasoner"}, "reasoner is not served"),
        ({"model_mode": "image2image"}, "image2image is not served"),
        ({"num_steps": "many"}, "num_steps"),
        ({"unknown": 1}, "unknown"),
        ({"resolution": None}, "no size"),
        ({"resolution": "1080", "aspect_ratio": "16,9"}, "multiple of 16"),
        ({"vision_path": "/nowhere/a.png"}, "gone"),
    ],
)
def test_what_the_contract_should_have_refused_is_refused_here_too(engine, root, change, says):
    job = make_job(root, "refused", **T2I)
    job = job.model_copy(update={"args": {**job.args, **change}})
    [result] = generate(engine, job)
    assert result.error is not None and says in result.error.message
    assert result.error.code in (SampleCode.INPUT_INVALID, SampleCode.STAGING_FAILED)


@pytest.mark.parametrize("directory", ["/elsewhere/r/x", "relative/x", "../x"])
def test_a_directory_outside_the_root_is_refused(engine, root, directory):
    job = make_job(root, "outside", **T2I)
    target = str(root / directory) if directory.startswith("..") else directory
    [result] = generate(engine, job.model_copy(update={"output_dir": target}))
    assert result.error is not None and "outside the output root" in result.error.message
    assert not Path("/elsewhere").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_that_are_no_numbers_become_no_file(engine, root, value):
    job = make_job(root, f"nan{value}", **T2I)
    [item] = engine.denoise([job], lambda *_: None, lambda key: False)
    with torch.inference_mode():
        item.latents.latents[0, 0, 0, 0, 0] = value
    result = engine.finish(item)
    assert result.error is not None and result.error.code is SampleCode.OUTPUT_INVALID
    assert not (Path(job.output_dir) / "vision.jpg").exists()


def test_out_of_memory_while_decoding(engine, root, monkeypatch):
    [item] = engine.denoise([make_job(root, "oom", **T2I)], lambda *_: None, lambda key: False)
    real, calls = engine._tools.codec.decode, []

    def decode(latents: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) <= failures:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(latents)

    monkeypatch.setattr(engine._tools.codec, "decode", decode)
    failures = 1  # freed caches make room
    assert engine.finish(item).error is None
    calls.clear()
    failures = 2
    error = engine.finish(item).error
    assert error is not None and error.code is SampleCode.OUT_OF_MEMORY and error.retryable


def test_a_real_wave_survives_out_of_memory_with_the_same_bytes(engine, root, monkeypatch):
    jobs = [make_job(root, f"m{i}", seed=i, **{**T2I, "num_steps": 2}) for i in range(3)]
    calm = [i.latents.latents for i in engine.denoise(jobs, lambda *_: None, lambda key: False)]
    real, calls = engine._network.forward, []

    def forward(block: Any) -> Any:
        calls.append(len(block))
        if len(calls) == 2:  # the second step of the wave, which goes together since the calm run
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(block)

    monkeypatch.setattr(engine._network, "forward", forward)
    items = engine.denoise(jobs, lambda *_: None, lambda key: False)
    assert calls[:2] == [6, 6]
    assert all(torch.equal(a, b.latents.latents) for a, b in zip(calm, items, strict=True))
    assert {item.wave.inference_batch for item in items} == {1}


def test_cancelling_changes_nothing_for_the_neighbours(engine, root):
    jobs = [make_job(root, f"c{i}", seed=i, **{**T2I, "num_steps": 3}) for i in range(3)]
    calm = [i.latents.latents for i in engine.denoise(jobs, lambda *_: None, lambda key: False)]
    steps: dict[str, int] = {}
    results = engine.denoise(
        jobs, lambda key, step, total: steps.update({key: step}), lambda key: key == "r/c1" and steps.get(key, 0) >= 1
    )
    assert steps == {"r/c0": 3, "r/c1": 1, "r/c2": 3}
    assert engine.finish(results[1]).error.code is SampleCode.CANCELLED
    assert all(torch.equal(results[i].latents.latents, calm[i]) for i in (0, 2))


def test_a_full_disk_is_a_failed_sample(engine, root, monkeypatch):
    [item] = engine.denoise([make_job(root, "disk", **T2I)], lambda *_: None, lambda key: False)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cosmos3_serve.generator.engines.diffusers.outputs.write_jpeg", full)
    error = engine.finish(item).error
    assert error is not None and error.code is SampleCode.ENGINE_FAILED and "No space left" in error.message


class MediaGuardDouble:
    """A scripted double of the media check; `broken` raises, `silent` decides nothing."""

    configured = True
    loaded = (CheckRecord("media.double", "not_run", "scripted double", "0" * 40),)

    def __init__(self, media: str) -> None:
        self.media = media

    def to(self, device: Any) -> None: ...

    def check_media(self, frames: Any) -> Any:
        if self.media == "broken":
            raise RuntimeError("no model")
        if self.media == "silent":
            return frames, []
        return frames * 0, [CheckRecord("media.double", self.media, "scripted double", "0" * 40, 1.0)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "media, code, decision",
    [
        ("blocked", "guardrail_blocked", "blocked"),
        ("failed", "guardrail_failed", "failed"),
        ("broken", "guardrail_failed", "failed"),
        ("silent", "guardrail_failed", "failed"),
        ("passed", None, "passed"),
        ("altered", None, "altered"),
    ],
)
def test_the_guard_decides_and_a_broken_one_fails_closed(root, monkeypatch, media, code, decision):
    guard = MediaGuardDouble(media)
    monkeypatch.setattr("cosmos3_serve.generator.engines.diffusers.engine.make_guard", lambda files: guard)
    engine = make_engine(root, monkeypatch)
    job = make_job(root, f"guard-{media}", **T2I)
    [result] = generate(engine, job)
    image = Path(job.output_dir) / "vision.jpg"
    assert [check["decision"] for check in result.guardrails["checks"]] == [decision]
    assert result.guardrails["configured"] is True
    if code is not None:
        assert result.error is not None and result.error.code == code
        assert not image.exists()
    else:
        assert result.guardrails["applied"] is True and result.phases["media_check"] >= 0
        assert not np.asarray(Image.open(image)).any()  # what the guard gave back, not what went in


@pytest.mark.parametrize("count", [0, 9])
def test_a_wave_of_the_wrong_size_is_a_bug_of_the_caller(engine, root, count):
    jobs = [make_job(root, f"n{i}", **T2I) for i in range(count)]
    with pytest.raises(ValueError, match="in one wave"):
        engine.denoise(jobs, lambda *_: None, lambda key: False)


def test_failed_sample_crosses_processes(engine, root):
    import pickle

    job = EngineJob(request_id="r", name="p", output_dir=str(root / "r/p"), args={})
    [failed] = engine.denoise([job], lambda *_: None, lambda key: False)
    again = pickle.loads(pickle.dumps(failed))
    assert (again.sample_code, again.detail, again.job) == (failed.sample_code, failed.detail, job)


def test_text_is_computed_once_per_prompt_of_a_wave(engine, root, monkeypatch):
    real, seen = engine._network.prefill, []
    monkeypatch.setattr(engine._network, "prefill", lambda ids: seen.append(ids) or real(ids))
    jobs = [make_job(root, f"p{i}", prompt=p, model_mode="text2image", num_steps=3) for i, p in enumerate("aab")]
    generate(engine, *jobs)
    assert len(seen) == 3  # "a", "b" and the common negative prompt, whatever the number of steps


def test_bfloat16_as_on_cuda_runs_every_part(root, files, small_canvas, monkeypatch):
    """The GPU's precision and packing, on a CPU: no part may assume float32."""
    half = load_components(tiny_checkpoint().path, torch.device("cpu"), torch.bfloat16)
    module = "cosmos3_serve.generator.engines.diffusers.engine.load_components"
    monkeypatch.setattr(module, lambda path, device: half)
    engine = DiffusersEngine(tiny_checkpoint(), output_root=root, device="cpu", guardrails=None, packing="wave")
    assert engine.info().dtype == "bfloat16"
    action = {"domain_name": "av", "action_chunk_size": 4, "guidance": 2.0, "vision_path": files["image.png"]}
    jobs = [
        make_job(root, "h1", prompt="x", model_mode="wam", num_steps=2, **action),
        make_job(root, "h2", prompt="x", num_steps=2, edge={"control_path": files["control.png"]}, num_frames=1),
    ]
    results = generate(engine, *jobs)
    assert [r.error for r in results] == [None, None]


def test_components_are_shared_and_unchanged():
    assert not any(p.requires_grad for p in components().transformer.parameters())
    assert isinstance(tiny_checkpoint(), Checkpoint)
