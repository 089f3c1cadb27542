"""Media that were decoded before a sample's turn: the same bytes, and nothing is decoded in the turn."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.engine import fingerprint, generate, make_job
from support.modes import MODES, case

from cosmos3_serve.generator.engines import ahead


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
