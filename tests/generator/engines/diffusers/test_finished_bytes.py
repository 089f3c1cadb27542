"""Same bytes of finished files, in every slot of a wave and whatever is decoded and encoded beside them.

Source: rulings, generator 3. Of latents, `test_bytes` says the same of every mode.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

from support.engine import fingerprint, generate, latents, make_engine, make_job
from support.modes import PROMPTS, case, same


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


def test_finishing_beside_the_next_wave(root, files, monkeypatch):
    """Decoding and encoding media share the VAE's weights with preparing the next wave, but no state."""
    engine = make_engine(root, monkeypatch)  # its VAE remembers nothing
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
