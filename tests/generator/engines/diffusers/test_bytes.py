"""Same bytes: on one machine and with one number of threads a sample's files do not depend on its company or its slot.

By default samples of one layout share the matrix products where that was seen to change no bit; packed come what may,
as on CUDA, they agree within 1e-5.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.engine import fingerprint, generate, latents, make_engine, make_job
from support.modes import MODES, PROMPTS, case, same
from support.vae import remembering


@pytest.fixture(scope="session")
def packed(root):
    """One block a step whatever it does to the bytes."""
    with pytest.MonkeyPatch.context() as patch:
        yield remembering(make_engine(root, patch, packing="wave"))


def error(found: Any, expected: Any) -> float:
    """Largest difference of the latents, relative to the largest of them."""
    return float((found.latents - expected.latents).abs().max() / expected.latents.abs().max())


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_alone_and_in_a_wave_of_four(engine, packed, root, files, mode):
    def jobs(order: list[int]) -> list[Any]:
        return [make_job(root, f"{mode}{i}", prompt=PROMPTS[i], seed=10 + i, **case(mode, files)) for i in order]

    # Transfer samples never share a wave in the service; two together show that nothing depends on that.
    order = [1, 0] if mode == "transfer" else [2, 0, 3, 1]
    alone = [latents(engine, job)[0] for job in jobs(sorted(order))]
    assert not same(alone[0], alone[1])
    for index, result, unproven in zip(
        order, latents(engine, *jobs(order)), latents(packed, *jobs(order)), strict=True
    ):
        assert same(result, alone[index]), f"sample {index} differs in a wave"
        assert error(unproven, alone[index]) < 1e-5, f"sample {index} differs in a wave, packed"


@pytest.mark.usefixtures("torch_threads")
def test_a_wave_of_equal_shapes_is_one_forward_a_step(root, monkeypatch):
    """After the first step, which also runs sample by sample to see that the bits are the same. Where they are not, as
    they may be on a CPU that no one has tried, it goes on sample by sample."""
    fresh = make_engine(root, monkeypatch, threads=1)
    real, blocks = fresh._network.forward, []
    monkeypatch.setattr(fresh._network, "forward", lambda block: blocks.append(len(block)) or real(block))
    for turn, proof in (("first", [2, 2, 2, 2]), ("second", [])):
        blocks.clear()
        jobs = [
            make_job(root, f"s{i}", request_id=turn, prompt=p, seed=i, model_mode="text2image", num_steps=4)
            for i, p in enumerate(PROMPTS)
        ]
        latents(fresh, *jobs)
        [proved] = fresh._proven._same.values()
        rest = [8, 8, 8] if proved else [2] * 12  # each sample with its prompt and its negative prompt
        assert blocks == [*proof, *([8] if proof or proved else [2] * 4), *rest]


def test_mixed_shapes_are_recorded_and_packed_they_agree_within_1e_5(packed, root, files):
    modes = [m for m in MODES if m not in ("text2video", "forward_dynamics", "inverse_dynamics")]
    jobs = [make_job(root, m, prompt=PROMPTS[1], seed=5, **case(m, files)) for m in modes]
    alone = [latents(packed, job)[0] for job in jobs]
    items = packed.denoise(jobs, lambda *_: None, lambda key: False)
    assert all(item.wave.mixed_shapes and item.wave.inference_batch == 5 for item in items)
    for item, own in zip(items, alone, strict=True):
        assert error(item.latents, own) < 1e-5


@pytest.fixture
def torch_threads():
    """Restores the number that the other tests have."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.usefixtures("small_canvas", "torch_threads")
def test_with_the_same_number_of_threads_files_are_the_same_alone_and_in_a_wave(root, files, monkeypatch, threads):
    """Another number may give other bytes: with it a library splits its sums and picks its kernels differently."""

    def jobs(request: str) -> list[Any]:
        fields = {"request_id": f"{request}{threads}", "prompt": "x", "seed": 5}
        return [make_job(root, m, **fields, **case(m, files)) for m in ("text2image", "image2video", "wam")]

    fresh = make_engine(root, monkeypatch, threads=threads)  # its VAE remembers nothing
    for request in ("alone", "again"):
        assert all(generate(fresh, job)[0].error is None for job in jobs(request))
    assert [result.wave.inference_batch for result in generate(fresh, *jobs("wave"))] == [3, 3, 3]
    alone, again, wave = ([fingerprint(job) for job in jobs(request)] for request in ("alone", "again", "wave"))
    assert alone == again == wave


@pytest.mark.usefixtures("small_canvas", "torch_threads")
def test_the_record_has_the_number_of_threads_that_denoised_and_decoded(root, monkeypatch):
    """As the worker does it: each in a thread of its own, which may have had another number before."""
    fresh, used = make_engine(root, monkeypatch, threads=3), []
    network, codec = fresh._network.forward, fresh._tools.codec.decode
    monkeypatch.setattr(fresh._network, "forward", lambda block: used.append(torch.get_num_threads()) or network(block))
    monkeypatch.setattr(fresh._tools.codec, "decode", lambda x: used.append(torch.get_num_threads()) or codec(x))
    job = make_job(root, "threads", prompt="x", model_mode="text2image", num_steps=1)
    with ThreadPoolExecutor(1) as denoising, ThreadPoolExecutor(1) as finishing:
        for pool in (denoising, finishing):
            pool.submit(torch.get_num_threads).result(60)  # from now on the thread does not follow the process
            pool.submit(torch.set_num_threads, 2).result(60)
        [item] = denoising.submit(fresh.denoise, [job], lambda *_: None, lambda key: False).result(60)
        result = finishing.submit(fresh.finish, item).result(60)
    assert result.compute is not None and set(used) == {result.compute.threads} == {3} and len(used) == 2


def test_another_seed_gives_other_bytes(engine, root):
    a, b, again = latents(
        engine,
        *(make_job(root, n, prompt="x", seed=s, model_mode="text2image") for n, s in (("a", 1), ("b", 2), ("c", 1))),
    )
    assert same(a, again) and not same(a, b)
