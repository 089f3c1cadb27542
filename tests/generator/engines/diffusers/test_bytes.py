"""Same bytes: a sample's files do not depend on its company, its slot, the number of threads, or what runs meanwhile.

Source: rulings, generator 3. By default samples of one layout share the matrix products where that was seen to change
no bit; packed come what may, as on CUDA, equal shapes must have the same bits on this machine, mixed ones agree within
1e-5.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.engine import fingerprint, generate, latents, make_engine, make_job

from cosmos3_serve.generator.engines import ahead

PROMPTS = ("a red cube", "a much longer prompt about a robot arm that lifts a green bottle", "dog", "rain. Night")
ACTION = {"domain_name": "bridge_orig_lerobot", "action_chunk_size": 4, "num_steps": 2, "guidance": 3.0}


def case(mode: str, files: dict[str, str]) -> dict[str, Any]:
    clip, image = files["clip.mp4"], files["image.png"]
    edge, depth = {"control_path": files["edge.mp4"], "weight": 3.0}, {"control_path": files["depth.mp4"]}
    return {
        "text2image": {"model_mode": "text2image", "num_steps": 3},
        "text2video": {"model_mode": "text2video", "num_steps": 2, "num_frames": 5},
        "image2video": {"vision_path": image, "num_steps": 2, "num_frames": 5},
        "video2video": {"vision_path": clip, "num_steps": 2, "num_frames": 5, "condition_frame_indexes_vision": [0]},
        "wam": {"model_mode": "wam", "vision_path": image, **ACTION},
        "forward_dynamics": {
            "model_mode": "forward_dynamics", "vision_path": image, "action_path": files["actions.json"], **ACTION
        },
        "inverse_dynamics": {"model_mode": "inverse_dynamics", "vision_path": clip, **ACTION},
        "transfer": {"edge": edge, "depth": depth, "num_video_frames_per_chunk": 5, "max_frames": 5, "num_steps": 1,
                     "control_guidance": 2.0},
    }[mode]  # fmt: skip


MODES = (
    "text2image", "text2video", "image2video", "video2video", "wam", "forward_dynamics", "inverse_dynamics", "transfer",
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Whether two results hold the same bits: latents, actions and chunks decoded on the way."""
    actions = (a.action is None and b.action is None) or torch.equal(a.action, b.action)
    chunks = len(a.chunks) == len(b.chunks) and all((x == y).all() for x, y in zip(a.chunks, b.chunks, strict=True))
    return actions and chunks and torch.equal(a.latents, b.latents)


def test_files_alone_and_in_every_slot_of_a_wave(engine, root):
    jobs = [
        make_job(root, f"s{i}", request_id="alone", prompt=p, seed=i, model_mode="text2image", num_steps=2)
        for i, p in enumerate(PROMPTS)
    ]
    for job in jobs:
        [result] = generate(engine, job)
        assert result.wave.inference_batch == 1
    alone = [fingerprint(job) for job in jobs]
    assert len({a["vision.jpg"] for a in alone}) == 4
    for turn in range(4):
        order = [(turn + k) % 4 for k in range(4)]
        again = [
            make_job(
                root, f"s{i}", request_id=f"turn{turn}", prompt=PROMPTS[i], seed=i, model_mode="text2image", num_steps=2
            )
            for i in order
        ]
        results = generate(engine, *again)
        assert [r.wave.slot for r in results] == [0, 1, 2, 3]
        assert not any(r.wave.mixed_shapes for r in results)
        assert [fingerprint(job) for job in again] == [alone[i] for i in order]


@pytest.fixture(scope="session")
def packed(root):
    """One block a step whatever it does to the bytes."""
    with pytest.MonkeyPatch.context() as patch:
        yield make_engine(root, patch, packing="wave")


@pytest.mark.parametrize("packing", ["default", "packed"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_alone_and_in_a_wave_of_four(engine, packed, root, files, mode, packing):
    together = engine if packing == "default" else packed

    def jobs(order: list[int]) -> list[Any]:
        return [make_job(root, f"{mode}{i}", prompt=PROMPTS[i], seed=10 + i, **case(mode, files)) for i in order]

    # Transfer samples never share a wave in the service; two together show that nothing depends on that.
    order = [1, 0] if mode == "transfer" else [2, 0, 3, 1]
    alone = [latents(engine, job)[0] for job in jobs(sorted(order))]
    assert not same(alone[0], alone[1])
    for index, result in zip(order, latents(together, *jobs(order)), strict=True):
        assert same(result, alone[index]), f"sample {index} differs in a wave"


def test_finished_files_of_a_transfer_and_an_action(engine, root, files):
    for mode in ("transfer", "wam"):
        prints = []
        for request, company in (("solo", []), ("shared", ["text2image"])):
            fields = {**case(mode, files), **({"max_frames": 6} if mode == "transfer" else {})}  # two chunks
            job = make_job(root, mode, request_id=request, prompt="x", seed=3, **fields)
            others = [make_job(root, m, request_id=request, prompt="y", **case(m, files)) for m in company]
            generate(engine, *others, job)
            prints.append(fingerprint(job))
        assert prints[0] == prints[1]


def test_a_wave_of_equal_shapes_is_one_forward_a_step(root, monkeypatch):
    """After the first step, which also runs sample by sample to see that the bits are the same."""
    fresh = make_engine(root, monkeypatch)
    real, blocks = fresh._network.forward, []
    monkeypatch.setattr(fresh._network, "forward", lambda block: blocks.append(len(block)) or real(block))
    for turn, proof in (("first", [2, 2, 2, 2]), ("second", [])):
        blocks.clear()
        jobs = [
            make_job(root, f"s{i}", request_id=turn, prompt=p, seed=i, model_mode="text2image", num_steps=4)
            for i, p in enumerate(PROMPTS)
        ]
        latents(fresh, *jobs)
        assert blocks == [*proof, 8, 8, 8, 8]  # each sample with its prompt and its negative prompt


def test_mixed_shapes_are_recorded_and_packed_they_agree_within_1e_5(packed, root, files):
    modes = [m for m in MODES if m not in ("text2video", "forward_dynamics", "inverse_dynamics")]
    jobs = [make_job(root, m, prompt=PROMPTS[1], seed=5, **case(m, files)) for m in modes]
    alone = [latents(packed, job)[0] for job in jobs]
    items = packed.denoise(jobs, lambda *_: None, lambda key: False)
    assert all(item.wave.mixed_shapes and item.wave.inference_batch == 5 for item in items)
    for item, own in zip(items, alone, strict=True):
        error = (item.latents.latents - own.latents).abs().max() / own.latents.abs().max()
        assert error < 1e-5


def test_threads_do_not_matter(engine, root, files):
    jobs = [make_job(root, m, prompt="x", seed=5, **case(m, files)) for m in ("text2image", "image2video", "wam")]
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(latents(engine, *jobs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(same(a, b) for a, b in zip(results[0], other, strict=True))


def test_finishing_beside_the_next_wave(engine, root, files):
    """Decoding and encoding media share the VAE's weights with preparing the next wave, but no state."""
    first = [
        make_job(root, f"f{i}", request_id="calm", seed=i, prompt="x", **case("image2video", files)) for i in range(2)
    ]
    second = [make_job(root, f"s{i}", seed=i, prompt="y", **case("image2video", files)) for i in range(2)]
    generate(engine, *first)
    calm, expected = [fingerprint(job) for job in first], latents(engine, *second)

    busy = [
        make_job(root, f"f{i}", request_id="busy", seed=i, prompt="x", **case("image2video", files)) for i in range(2)
    ]
    items = engine.denoise(busy, lambda *_: None, lambda key: False)
    started = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        finishing = [pool.submit(lambda item: (started.wait(30), engine.finish(item)), item) for item in items]
        waving = pool.submit(lambda: (started.set(), latents(engine, *second))[1])
        found = waving.result(120)
        assert all(f.result(120)[1].error is None for f in finishing)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    assert [fingerprint(job) for job in busy] == calm


@pytest.mark.parametrize("mode", [m for m in MODES if not m.startswith("text")])
def test_media_decoded_before_the_turn_change_no_byte_and_are_not_decoded_in_it(engine, root, files, mode, monkeypatch):
    fields = {**case(mode, files), **({"max_frames": 6} if mode == "transfer" else {})}  # two chunks
    plain = make_job(root, mode, request_id="in-turn", prompt="x", seed=3, **fields)
    early = make_job(root, mode, request_id="ahead", prompt="x", seed=3, **fields)
    generate(engine, plain)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.load, early).result(60)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("decoded on the thread that denoises")

    with monkeypatch.context() as patch:
        patch.setattr(ahead, "read_media", refuse)
        generate(engine, early)
    engine.unload(early)
    assert fingerprint(early) == fingerprint(plain)
    assert engine._ahead.used_bytes == 0


def test_another_seed_gives_other_bytes(engine, root):
    a, b, again = latents(
        engine,
        *(make_job(root, n, prompt="x", seed=s, model_mode="text2image") for n, s in (("a", 1), ("b", 2), ("c", 1))),
    )
    assert same(a, again) and not same(a, b)
