"""Same bytes of finished files: whatever finishes beside them, and whoever read their media when.

Source: rulings, generator 3. Of latents, `test_bytes` says the same of every mode.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.engine import fingerprint, generate, latents, make_job
from support.modes import MODES, case, same

from cosmos3_serve.generator.engines import ahead


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
