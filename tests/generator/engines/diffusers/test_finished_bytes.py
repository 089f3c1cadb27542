"""Same bytes of finished files: in every slot of a wave, whatever is decoded and encoded beside them, and where their
media were decoded before their turn.

Of latents, `test_bytes` says the same of every mode.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from support.engine import fingerprint, generate, latents, make_engine, make_job
from support.modes import MODES, PROMPTS, case, same

from cosmos3_serve.generator.engines import inputs
from cosmos3_serve.generator.engines.diffusers.codec import Codec


@pytest.fixture(scope="module")
def sample(root, files):
    """A mode's sample, as a job of any request."""

    def job(mode: str, request: str) -> Any:
        fields = {**case(mode, files), **({"max_frames": 6} if mode == "transfer" else {})}  # two chunks
        return make_job(root, mode, request_id=request, prompt="x", seed=3, **fields)

    return job


@pytest.fixture(scope="module")
def solo(engine, sample):
    """What files a mode's sample has that was generated alone, its media read in its turn; generated once."""

    @cache
    def files(mode: str) -> dict[str, str]:
        [result] = generate(engine, sample(mode, "solo"))
        assert result.error is None and result.wave.inference_batch == 1
        return fingerprint(sample(mode, "solo"))

    return files


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


@pytest.mark.parametrize("mode", ["transfer", "wam"])
def test_finished_files_of_a_transfer_and_an_action_in_company(engine, root, files, sample, solo, mode):
    other = make_job(root, "other", request_id="shared", prompt="y", **case("text2image", files))
    results = generate(engine, other, sample(mode, "shared"))
    assert [result.wave.inference_batch for result in results] == [2, 2]
    assert fingerprint(sample(mode, "shared")) == solo(mode)


@pytest.mark.parametrize("mode", [m for m in MODES if not m.startswith("text")])
def test_media_decoded_before_the_turn_change_no_byte_and_are_not_decoded_in_it(
    engine, sample, solo, mode, monkeypatch
):
    expected, early = solo(mode), sample(mode, "ahead")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.load, early).result(60)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("decoded on the thread that denoises")

    with monkeypatch.context() as patch:
        patch.setattr(inputs.MediaReader, "read", refuse)
        generate(engine, early)
    engine.unload(early)
    assert fingerprint(early) == expected
    assert engine._ahead.used_bytes == 0


@contextmanager
def encoded_in_the_middle_of_decoding(codec: Codec) -> Iterator[None]:
    """The next clip to be encoded is encoded between the first two latent frames of the next that is decoded."""
    begun, encoded, frames = threading.Event(), threading.Event(), itertools.count()
    real = codec._encoder.encode

    def encode(pixels: Any) -> Any:
        assert begun.wait(60)
        found = real(pixels)
        encoded.set()
        return found

    def after_a_frame(*_: Any) -> None:
        if next(frames) == 0:
            begun.set()
            assert encoded.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec._encoder, "encode", encode)
        hook = codec._decoder.decoder.register_forward_hook(after_a_frame)
        try:
            yield
        finally:
            hook.remove()


def test_finishing_beside_the_next_wave(root, files, small_canvas, monkeypatch):
    """Decoding and encoding media share the VAE's weights with preparing the next wave, but no state."""
    engine = make_engine(root, monkeypatch)  # its VAE remembers nothing

    def finished(request: str) -> list[Any]:
        return [
            make_job(root, f"f{i}", request_id=request, seed=i, prompt="x", **case("text2video", files))
            for i in range(2)
        ]

    first, busy = finished("calm"), finished("busy")
    second = [make_job(root, f"s{i}", seed=i, prompt="y", **case("image2video", files)) for i in range(2)]
    generate(engine, *first)
    calm, expected = [fingerprint(job) for job in first], latents(engine, *second)

    items = engine.denoise(busy, lambda *_: None, lambda key: False)
    with encoded_in_the_middle_of_decoding(engine._tools.codec), ThreadPoolExecutor(3) as pool:
        finishing = [pool.submit(engine.finish, item) for item in items]
        waving = pool.submit(latents, engine, *second)
        found = waving.result(120)
        assert [f.result(120).error for f in finishing] == [None, None]
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    assert [fingerprint(job) for job in busy] == calm
