"""Parts are as full as the limits allow, and never fuller than the body that the client sends."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.errors import LimitExceeded
from cosmos3_serve.queue.batches import Batches
from cosmos3_serve.queue.records import MIN_BODY_BYTES, Limits
from cosmos3_serve.queue.split import ENVELOPE_BYTES, Group, Sourced, Splitter, part_name

PROMPTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def split(prompts: list[str], limits: Limits) -> list[Group]:
    splitter, groups = Splitter(limits, Batches().item_bytes), []
    for number, prompt in enumerate(prompts):
        groups += splitter.add(Sourced({"name": f"s{number}", "prompt": prompt, "nested": {"a": [1, 2]}}, str(number)))
    return [*groups, *splitter.rest()]


@given(st.lists(PROMPTS, min_size=1, max_size=40), st.integers(1, 7), st.integers(MIN_BODY_BYTES, 20_000))
def test_every_part_fits_and_nothing_is_lost(prompts: list[str], most: int, size: int) -> None:
    groups = split(prompts, Limits(max_samples=most, max_body_bytes=size))
    samples = [item.sample for group in groups for item in group.samples]
    assert [sample["prompt"] for sample in samples] == prompts
    for group in groups:
        body = BatchRequest(samples=[item.sample for item in group.samples], request_id="q" * 128).body()
        assert 1 <= len(group.samples) <= most
        assert len(json.dumps(body, indent=2).encode()) <= size
    for group, following in pairwise(groups):
        more = Batches().item_bytes(following.samples[0].sample)
        assert len(group.samples) == most or group.bytes + more > size - ENVELOPE_BYTES, "there was room for one more"


def test_a_full_part_is_as_large_as_its_body_and_no_larger() -> None:
    """Every size in turn, so that some part is full to its last byte."""
    for size in range(MIN_BODY_BYTES, MIN_BODY_BYTES + 400, 7):
        first = split(["p"] * 60, Limits(max_body_bytes=size))[0]
        body = BatchRequest(samples=[item.sample for item in first.samples], request_id="q" * 128).body()
        length = len(json.dumps(body, indent=2).encode())
        assert length <= size
        assert abs(length - first.bytes) < ENVELOPE_BYTES / 2, "a sample's share of the body is not what it takes"


def test_a_sample_that_fits_nowhere() -> None:
    with pytest.raises(LimitExceeded) as refused:
        split(["x" * MIN_BODY_BYTES], Limits(max_samples=5, max_body_bytes=MIN_BODY_BYTES))
    assert (refused.value.stable_code, refused.value.exit_code) == ("sample_too_large", 2)
    assert refused.value.detail.startswith("0: ")


def test_names() -> None:
    assert part_name(7) == "00007"
    assert part_name(12, "a scene/ü?") == "00012-a-scene"
    assert part_name(1, "...") == "00001"
    assert len(part_name(1, "x" * 300)) < 100
