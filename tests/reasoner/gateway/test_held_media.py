"""Belief and reality: a replica's cache is played beside ours, and a wrong belief costs one resend, never an answer."""

import random
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos3_serve.errors import UsageError
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.gateway.held_media import MediaPart, PartPlan, ReplicaMedia, media_uuid

R1, R1B, R2 = ReplicaRef("r1", 1), ReplicaRef("r1", 2), ReplicaRef("r2", 1)
SHA = "a" * 64


def part(name: str, size: int = 10) -> MediaPart:
    return MediaPart(name, size)


def data(plan: list[PartPlan]) -> list[bool]:
    return [p.with_data for p in plan]


def test_bytes_are_sent_once_per_replica() -> None:
    media = ReplicaMedia(max_bytes=100, max_items=10)
    assert data(media.plan([part("a"), part("b")], R1)) == [True, True]
    media.on_answer([part("a")], R1)
    assert data(media.plan([part("a"), part("b")], R1)) == [False, True]
    assert data(media.plan([part("a")], R2)) == [True]
    assert media.holds_all([part("a")], R1)
    assert not media.holds_all([part("a"), part("b")], R1)


def test_planning_is_no_belief() -> None:
    media = ReplicaMedia(max_bytes=100, max_items=10)
    media.plan([part("a")], R1)
    assert data(media.plan([part("a")], R1)) == [True]


@pytest.mark.parametrize(("max_bytes", "max_items"), [(30, 99), (999, 3)])
def test_the_least_recently_used_goes_first(max_bytes: int, max_items: int) -> None:
    media = ReplicaMedia(max_bytes=max_bytes, max_items=max_items)
    for name in "abc":
        media.on_answer([part(name)], R1)
    media.on_answer([part("a")], R1)
    media.on_answer([part("d")], R1)
    assert [media.holds_all([part(n)], R1) for n in "abcd"] == [True, False, True, True]


def test_what_does_not_fit_is_always_sent() -> None:
    media = ReplicaMedia(max_bytes=25, max_items=10)
    media.on_answer([part("big", 26)], R1)
    assert data(media.plan([part("big", 26)], R1)) == [True]
    media.on_answer([part("a"), part("b")], R1)
    assert data(media.plan([part("a"), part("b"), part("c")], R1)) == [True, True, True]
    assert data(media.plan([part("a"), part("a"), part("b")], R1)) == [False, False, False]


def test_a_miss_sends_everything_again_and_doubts_what_is_older() -> None:
    media = ReplicaMedia(max_bytes=100, max_items=10)
    for name in "abcde":
        media.on_answer([part(name)], R1)
    assert media.on_miss([part("c"), part("x")], R1) == [PartPlan("c", True), PartPlan("x", True)]
    assert [media.holds_all([part(n)], R1) for n in "abcde"] == [False, False, False, True, True]
    media.on_answer([part("c")], R1)
    assert media.holds_all([part("c")], R1)
    assert media.on_miss([part("z")], R2) == [PartPlan("z", True)]


def test_a_restart_empties_and_answers_of_the_old_life_are_ignored() -> None:
    media = ReplicaMedia(max_bytes=100, max_items=10)
    media.on_answer([part("a")], R1)
    media.on_incarnation(R1)
    assert media.holds_all([part("a")], R1), "the same life, told again"
    media.on_incarnation(R1B)
    assert not media.holds_all([part("a")], R1B)
    assert not media.holds_all([part("a")], R1)
    media.on_answer([part("a")], R1)
    assert not media.holds_all([part("a")], R1B)
    media.on_answer([part("a")], ReplicaRef("r1", 3))  # an answer may be the first news of a restart
    assert media.holds_all([part("a")], ReplicaRef("r1", 3))
    media.keep_only(["r2"])
    assert not media.holds_all([part("a")], ReplicaRef("r1", 3))


def test_capacities_must_be_positive() -> None:
    with pytest.raises(UsageError):
        ReplicaMedia(max_bytes=0, max_items=1)


class Cache:
    """A replica's own cache: strict about what it has."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.items = max_bytes, OrderedDict[str, int]()

    def ask(self, parts: list[MediaPart], plan: list[PartPlan]) -> bool:
        """False: a part without data is not there (400, cache miss); nothing is changed then."""
        if any(not p.with_data and p.uuid not in self.items for p in plan):
            return False
        for p in parts:
            self.items.pop(p.uuid, None)
            if p.cache_bytes <= self.max_bytes:
                self.items[p.uuid] = p.cache_bytes
            while sum(self.items.values()) > self.max_bytes:
                self.items.popitem(last=False)
        return True


def drive(seed: int, gateways: int) -> tuple[int, int]:
    rng = random.Random(seed)
    cache = Cache(100)
    beliefs = [ReplicaMedia(max_bytes=100, max_items=100) for _ in range(gateways)]
    misses = 0
    for _ in range(500):
        media = rng.choice(beliefs)
        parts = [part(f"v{rng.randrange(12)}", 10 + rng.randrange(3)) for _ in range(rng.randint(1, 3))]
        parts = list({p.uuid: part(p.uuid, 10 + len(p.uuid)) for p in parts}.values())
        if not cache.ask(parts, media.plan(parts, R1)):
            misses += 1
            assert cache.ask(parts, media.on_miss(parts, R1)), "with bytes it always works"
        media.on_answer(parts, R1)
        assert sum(next(iter(media._replicas.values())).items.values()) == media._replicas["r1"].bytes <= 100
    return misses, 500


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1_000))
def test_alone_a_gateway_mirrors_the_cache_exactly(seed: int) -> None:
    assert drive(seed, gateways=1)[0] == 0


def test_two_gateways_pay_with_misses_and_never_with_a_failure() -> None:
    misses, asked = drive(7, gateways=2)
    assert 0 < misses < asked / 4


def test_the_uuid_binds_everything_that_changes_tokens() -> None:
    base = media_uuid("video", SHA, {"fps": 2, "max_pixels": 100})
    assert base == media_uuid("video", SHA, {"max_pixels": 100, "fps": 2.0})
    others = [
        media_uuid("image", SHA, {"fps": 2, "max_pixels": 100}),
        media_uuid("video", "b" * 64, {"fps": 2, "max_pixels": 100}),
        media_uuid("video", SHA, {"fps": 4, "max_pixels": 100}),
        media_uuid("video", SHA, {"fps": 2}),
        media_uuid("video", SHA, {"fps": "2", "max_pixels": 100}),
        media_uuid("video", SHA, {"fps": 2, "max_pixels": None}),
        media_uuid("video", SHA, {"fps": 2, "max_pixels": [100]}),
    ]
    assert len({base, *others}) == 8
    assert all(len(u) == 64 for u in [base, *others])


@pytest.mark.parametrize(
    ("sha", "options"),
    [("A" * 64, {}), ("a" * 63, {}), ("../" + "a" * 61, {}), (SHA, {"fps": float("nan")}), (SHA, {"x": object()}),
     (SHA, {"nested": {1: 2}})],
)  # fmt: skip
def test_what_cannot_be_told_apart_is_refused(sha: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        media_uuid("video", sha, options)
