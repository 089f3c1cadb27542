"""A response made in slices is, byte for byte, the one that the contract's model would write."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import Core

from cosmos3_serve.contract.batch import BatchResponse
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.ledger.batch import Batch, Sample, SampleDetail
from cosmos3_serve.generator.ledger.outcomes import Service, companies_of
from cosmos3_serve.generator.ledger.response import ResponseParts

ENGINE = dict.fromkeys(("engine", "revision", "checkpoint", "checkpoint_revision", "checkpoint_digest"), "x")
SERVICE = Service("diffusers-ray-serve", "diffusers-0", "a" * 40, guardrails=False, max_batch_size=4)


def detail(index: int) -> SampleDetail:
    name = f"s{index}"
    if index % 3 == 2:
        return SampleDetail(
            name, index, SampleState.FAILED, SampleCode.ENGINE_FAILED.value, message='a "quoted" é word'
        )
    artifact = {"path": f"r/{name}/vision.jpg", "bytes": index + 1, "sha256": f"{index:064x}"}
    outputs = {"args": {"prompt": '"outputs":[] \u2028 é'}, "status": "success", "outputs": []}
    wave = {"coalesced_id": "c", "coalesced": 2, "inference_id": f"i{index // 2}", "inference_batch": 2, "slot": 0}
    return SampleDetail(name, index, SampleState.SUCCEEDED, wave=wave, outputs=outputs, artifacts=[artifact])


def made(count: int, page: int) -> bytes:
    samples = [detail(i) for i in range(count)]
    light: list[Sample] = [Sample(s.name, s.seed, s.state, s.code) for s in samples]
    batch = Batch("r", "t", "0" * 64, "m", 1.0, {**ENGINE, "weights": "random"}, light)
    parts = ResponseParts(batch, SERVICE, companies_of(samples))
    asked: list[dict[str, Any]] = [{"prompt": "x"} for _ in samples]
    for start in range(0, count, page):
        parts.add(samples[start : start + page], asked[start : start + page])
    return b"".join(parts.chunks())


@pytest.mark.parametrize(("count", "page"), [(1, 1), (3, 256), (100, 7), (200, 256)])
def test_slices_make_the_bytes_of_the_whole(count: int, page: int) -> None:
    data = made(count, page)
    whole = BatchResponse.model_validate_json(data)
    assert whole.model_dump_json().encode() == data
    assert [sample.name for sample in whole.samples] == [f"s{i}" for i in range(count)]
    assert len(whole.outputs) == whole.batch_size == count
    assert len(whole.artifacts) == sum(i % 3 != 2 for i in range(count))


async def test_neighbours_are_told_across_pages(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.generator.ledger.queries.PAGE", 3)
    names = [f"s{i}" for i in range(8)]
    await core.submit(*names)
    response = await core.finish()
    assert [output["args"]["name"] for output in response["outputs"]] == names
    for sample in response["samples"]:
        assert len(sample["wave"]["neighbours"]) == sample["wave"]["inference_batch"] - 1
