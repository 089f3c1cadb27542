"""Turns with a load bound, and the choice that needs no talking."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.sessions.placement import RoundRobin, rendezvous


def refs(*names: str) -> list[ReplicaRef]:
    return [ReplicaRef(n, 1) for n in names]


FOUR = refs("a", "b", "c", "d")


def test_turns_go_round() -> None:
    turn = RoundRobin()
    assert "".join(turn.next(FOUR).id for _ in range(6)) == "abcdab"  # type: ignore[union-attr]


def test_a_replica_above_the_mean_by_more_than_one_is_skipped() -> None:
    turn = RoundRobin()
    load = {"a": 4, "b": 1, "c": 1, "d": 1}  # mean 1.75: a is above 2.75
    assert "".join(turn.next(FOUR, load).id for _ in range(4)) == "bcdb"  # type: ignore[union-attr]
    even = {"a": 2, "b": 1, "c": 1, "d": 1}  # mean 1.25: a is not above 2.25
    assert RoundRobin().next(FOUR, even) == FOUR[0]


def test_joins_and_leaves_keep_the_order_of_turns() -> None:
    turn = RoundRobin()
    turn.next(FOUR)
    turn.next(FOUR)
    assert turn.next(refs("a", "b", "bb", "c")) == ReplicaRef("bb", 1)
    assert turn.next(refs("a", "d")) == ReplicaRef("d", 1)
    assert turn.next([]) is None
    assert turn.next(refs("a", "d")) == ReplicaRef("a", 1)


def test_peek_moves_nothing() -> None:
    turn = RoundRobin()
    assert turn.peek(FOUR) == turn.peek(FOUR) == turn.next(FOUR) == FOUR[0]


@given(
    loads=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 50), min_size=1),
    last=st.sampled_from(["", "c", "z"]),
)
def test_a_choice_always_exists_and_keeps_the_bound(loads: dict[str, int], last: str) -> None:
    turn = RoundRobin()
    turn._last = last
    eligible = refs(*sorted(loads))
    chosen = turn.next(eligible, loads)
    assert chosen is not None
    assert loads[chosen.id] <= sum(loads.values()) / len(loads) + 1


def test_rendezvous_agrees_and_moves_only_what_it_must() -> None:
    keys = [f"k{i}" for i in range(400)]
    before = {k: rendezvous(k, FOUR) for k in keys}
    assert before == {k: rendezvous(k, list(reversed(FOUR))) for k in keys}
    assert min(Counter(before.values()).values()) > 60  # evenly, by chance alone
    restarted = [ReplicaRef("a", 9), *FOUR[1:]]
    assert all(rendezvous(k, restarted).id == before[k].id for k in keys)  # type: ignore[union-attr]
    without_d = {k: rendezvous(k, FOUR[:3]) for k in keys}
    assert all(without_d[k] == before[k] for k in keys if before[k] != FOUR[3])
    assert rendezvous("k", []) is None
