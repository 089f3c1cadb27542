"""Waves: the rules of the scheduler one by one, then all of them at once under random operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmos3_serve.errors import DeadlineUnreachable, LimitExceeded, QueueFull
from cosmos3_serve.generator.queue.durations import Durations
from cosmos3_serve.generator.queue.scheduler import Ticket, Wave, WaveScheduler


def tickets(batch: str, count: int, *, key: str = "k", shape: str = "s", ready: bool = True) -> list[Ticket]:
    return [Ticket(batch, index, key, shape, ready) for index in range(count)]


def names(wave: Wave | None) -> list[str]:
    assert wave is not None
    return [f"{t.batch}{t.index}" for t in wave.tickets]


def drain(scheduler: WaveScheduler) -> list[list[str]]:
    waves = []
    while wave := scheduler.next_wave(0.0):
        waves.append(names(wave))
        scheduler.finish(wave, 0.0)
    return waves


def test_samples_of_one_key_fill_a_wave_in_order() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=4)
    scheduler.offer(tickets("a", 6), 0.0)
    assert drain(scheduler) == [["a0", "a1", "a2", "a3"], ["a4", "a5"]]


def test_keys_never_mix_and_no_key_is_starved() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=4)
    mixed = [Ticket("a", i, "image" if i % 2 else "video", "s") for i in range(6)]
    scheduler.offer(mixed, 0.0)
    assert drain(scheduler) == [["a0", "a2", "a4"], ["a1", "a3", "a5"]]


def test_a_batch_of_a_thousand_does_not_block_a_batch_of_one() -> None:
    scheduler = WaveScheduler(queue_limit=2000, wave_limit=4)
    scheduler.offer(tickets("big", 1000, key="video"), 0.0)
    scheduler.offer(tickets("one", 1, key="image"), 0.0)
    scheduler.next_wave(0.0)
    scheduler._out.clear()
    assert names(scheduler.next_wave(0.0)) == ["one0"]


def test_joining_another_wave_does_not_cost_a_batch_its_turn() -> None:
    """Otherwise a batch whose second sample keeps joining would never head a wave for its first."""
    scheduler = WaveScheduler(queue_limit=100, wave_limit=2)
    scheduler.offer([Ticket("a", i, "x", "s") for i in range(1)], 0.0)
    scheduler.offer([Ticket("b", 0, "y", "s"), Ticket("b", 1, "x", "s"), Ticket("b", 2, "x", "s")], 0.0)
    scheduler.offer([Ticket("c", i, "x", "s") for i in range(4)], 0.0)
    assert drain(scheduler)[:2] == [["a0", "b1"], ["b0"]]


def test_the_own_batch_fills_before_foreign_ones_and_those_take_turns() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=5)
    scheduler.offer(tickets("a", 2), 0.0)
    scheduler.offer(tickets("b", 3), 0.0)
    scheduler.offer(tickets("c", 3), 0.0)
    assert drain(scheduler) == [["a0", "a1", "b0", "c0", "b1"], ["b2", "c1", "c2"]]


def test_a_sample_without_its_inputs_is_passed_over_but_keeps_its_place() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=1)
    scheduler.offer(tickets("slow", 2, ready=False), 0.0)
    scheduler.offer(tickets("b", 3), 0.0)
    first = scheduler.next_wave(0.0)
    assert first is not None and names(first) == ["b0"]
    scheduler.finish(first, 0.0)
    assert scheduler.make_ready("slow", 1, key="k", shape="s")
    assert drain(scheduler) == [["slow1"], ["b1"], ["b2"]]
    assert scheduler.depth == 1


def test_inputs_are_fetched_for_batches_in_turn() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=1)
    scheduler.offer(tickets("a", 3, ready=False), 0.0)
    scheduler.offer(tickets("b", 1, ready=False), 0.0)
    scheduler.offer(tickets("c", 2), 0.0)
    assert [f"{t.batch}{t.index}" for t in scheduler.unready(3)] == ["a0", "b0", "a1"]


def test_only_the_agreed_number_of_waves_is_out() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=1, in_flight=2)
    scheduler.offer(tickets("a", 3), 0.0)
    first = scheduler.next_wave(0.0)
    assert first is not None and scheduler.next_wave(0.0) is not None and scheduler.next_wave(0.0) is None
    scheduler.finish(first, 0.0)
    assert names(scheduler.next_wave(0.0)) == ["a2"]


def test_a_wave_that_is_not_full_waits_for_company_but_not_long() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=2, in_flight=2, wait_s=0.05)
    scheduler.offer(tickets("a", 1), 10.0)
    assert scheduler.next_wave(10.0) is None and scheduler.retry_at == 10.05
    scheduler.offer(tickets("b", 1, key="other"), 10.01)
    assert scheduler.next_wave(10.04) is None and scheduler.depth == 2
    assert names(scheduler.next_wave(10.05)) == ["a0"]
    assert scheduler.next_wave(99.0, denoising=True) is None and scheduler.retry_at is None
    scheduler.offer(tickets("c", 1, key="other"), 99.0)
    assert names(scheduler.next_wave(99.0, denoising=True)) == ["b0", "c0"]


def test_places_promised_to_a_batch_count_as_taken() -> None:
    scheduler = WaveScheduler(queue_limit=4, wave_limit=2)
    scheduler.promised = 3
    with pytest.raises(QueueFull):
        scheduler.check(tickets("a", 2))
    scheduler.check(tickets("a", 1))


def test_a_full_queue_says_when_to_come_back_and_takes_nothing() -> None:
    durations = Durations()
    durations.pace(4, 8.0)
    scheduler = WaveScheduler(queue_limit=10, wave_limit=4, durations=durations)
    scheduler.offer(tickets("a", 8), 0.0)
    with pytest.raises(QueueFull) as caught:
        scheduler.offer(tickets("b", 5), 0.0)
    assert caught.value.retry_after_s == pytest.approx(6.0)
    assert scheduler.depth == 8 and scheduler.waiting("b") == []
    scheduler.offer(tickets("c", 2), 0.0)
    scheduler.offer(tickets("b", 5), 0.0, force=True)


def test_what_the_queue_can_never_hold_is_a_limit_not_a_wait() -> None:
    with pytest.raises(LimitExceeded, match="holds 10"):
        WaveScheduler(queue_limit=10, wave_limit=4).offer(tickets("a", 11), 0.0)


def capped(**times: float) -> WaveScheduler:
    durations = Durations()
    for shape, seconds in times.items():
        durations.learn([shape], seconds)
    return WaveScheduler(queue_limit=100, wave_limit=8, cap_s=300.0, durations=durations)


def test_with_a_cap_an_unknown_shape_runs_alone_and_joins_nobody() -> None:
    scheduler = capped(known=10.0)
    scheduler.offer([*tickets("a", 2, shape="new")], 0.0)
    scheduler.offer([*tickets("b", 2, shape="known")], 0.0)
    assert drain(scheduler) == [["a0"], ["b0", "b1"], ["a1"]]


def test_without_a_cap_unknown_shapes_share() -> None:
    scheduler = WaveScheduler(queue_limit=100, wave_limit=8)
    scheduler.offer(tickets("a", 3, shape="new"), 0.0)
    assert drain(scheduler) == [["a0", "a1", "a2"]]


def test_a_wave_is_kept_under_the_cap() -> None:
    scheduler = capped(long=140.0, short=10.0)
    scheduler.offer([Ticket("a", i, "k", "long" if i < 3 else "short") for i in range(5)], 0.0)
    wave = scheduler.next_wave(0.0)
    assert wave is not None and names(wave) == ["a0", "a1", "a3", "a4"]
    assert wave.expected_s == pytest.approx(300.0)


def test_a_shape_past_the_cap_is_refused_by_name_and_leaves_the_queue_when_found_out() -> None:
    scheduler = capped()
    scheduler.offer(tickets("a", 3, shape="huge"), 0.0)
    wave = scheduler.next_wave(0.0)
    assert wave is not None and len(wave.tickets) == 1
    lost = scheduler.finish(wave, 310.0, engine_s=310.0)
    assert [(t.batch, t.index) for t in lost] == [("a", 1), ("a", 2)]
    assert scheduler.depth == 0
    with pytest.raises(DeadlineUnreachable) as caught:
        scheduler.offer([Ticket("b", 7, "k", "huge")], 0.0)
    assert caught.value.errors[0].field == "samples[7]"


def test_expectations_only_grow_and_a_shared_wave_slows_all_its_shapes() -> None:
    durations = Durations()
    durations.learn(["a"], 10.0)
    durations.learn(["a"], 4.0)
    assert durations.expected("a") == 10.0
    durations.learn(["a", "b"], 16.0)
    assert durations.expected("b") == 8.0
    durations.learn(["a", "b"], 36.0)
    assert durations.expected("a") == pytest.approx(20.0) and durations.expected("b") == pytest.approx(16.0)


def test_durations_forget_the_shape_not_seen_for_longest() -> None:
    durations = Durations(limit=2)
    for shape in ("a", "b", "a", "c"):
        durations.learn([shape], 1.0)
    assert durations.expected("b") is None and durations.expected("a") == 1.0


class Machine(RuleBasedStateMachine):
    """Whatever is done to it: nothing is lost or doubled, keys don't mix, bounds hold, nobody waits for ever."""

    LIMIT, WAVE, OUT = 30, 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = WaveScheduler(queue_limit=self.LIMIT, wave_limit=self.WAVE, in_flight=self.OUT)
        self.waiting: dict[tuple[str, int], Ticket] = {}
        self.out: list[Wave] = []
        self.patience: dict[str, int] = {}
        self.batches = 0

    @rule(keys=st.lists(st.sampled_from("xyz"), min_size=1, max_size=12), unready=st.sets(st.integers(0, 11)))
    def offer(self, keys: list[str], unready: set[int]) -> None:
        self.batches += 1
        name = f"b{self.batches}"
        fresh = [Ticket(name, i, key, key, i not in unready) for i, key in enumerate(keys)]
        if len(self.waiting) + len(fresh) > self.LIMIT:
            with pytest.raises(QueueFull):
                self.scheduler.offer(fresh, 0.0)
            return
        self.scheduler.offer(fresh, 0.0)
        self.waiting.update({(t.batch, t.index): t for t in fresh})

    @rule(limit=st.integers(0, 5))
    def stage(self, limit: int) -> None:
        for ticket in self.scheduler.unready(limit):
            assert not self.waiting[ticket.batch, ticket.index].ready
            assert self.scheduler.make_ready(ticket.batch, ticket.index, key=ticket.key, shape=ticket.shape)
            self.waiting[ticket.batch, ticket.index] = Ticket(ticket.batch, ticket.index, ticket.key, ticket.shape)

    @rule()
    def start(self) -> None:
        ready = {name for (name, _), t in self.waiting.items() if t.ready}
        lines = len({name for name, _ in self.waiting})
        wave = self.scheduler.next_wave(0.0)
        if wave is None:
            assert len(self.out) == self.OUT or not ready
            return
        head = wave.tickets[0]
        assert 1 <= len(wave.tickets) <= self.WAVE
        assert {t.key for t in wave.tickets} == {head.key}
        for ticket in wave.tickets:
            assert self.waiting.pop((ticket.batch, ticket.index)).ready
        for name in {t.batch for t in wave.tickets}:
            started = [t.index for t in wave.tickets if t.batch == name]
            left = [i for (b, i), t in self.waiting.items() if b == name and t.ready and t.key == head.key]
            assert started == sorted(started) and all(started[-1] < i for i in left)
        # A batch that could have headed a wave is passed over at most once by each batch that stood there before.
        self.patience = {n: self.patience.get(n, lines) - 1 for n in ready if n != head.batch}
        assert all(left >= 0 for left in self.patience.values())
        self.out.append(wave)

    @rule(which=st.integers(0, 1))
    def finish(self, which: int) -> None:
        if self.out:
            assert self.scheduler.finish(self.out.pop(which % len(self.out)), 1.0, engine_s=2.0) == []

    @rule(which=st.integers(0, 29))
    def withdraw(self, which: int) -> None:
        if not self.waiting:
            return
        name = sorted(self.waiting)[which % len(self.waiting)][0]
        expected = sorted(i for b, i in self.waiting if b == name)
        assert [t.index for t in self.scheduler.withdraw(name)] == expected
        self.waiting = {k: t for k, t in self.waiting.items() if k[0] != name}
        self.patience.pop(name, None)

    @invariant()
    def counts_agree(self) -> None:
        assert self.scheduler.depth == len(self.waiting) <= self.LIMIT
        assert self.scheduler.in_flight == len(self.out) <= self.OUT
        for name in {batch for batch, _ in self.waiting}:
            assert self.scheduler.waiting(name) == sorted(i for b, i in self.waiting if b == name)


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestScheduler = Machine.TestCase


def test_every_ready_batch_heads_a_wave_within_one_round_of_the_others() -> None:
    scheduler = WaveScheduler(queue_limit=1000, wave_limit=2)
    lines = [f"b{i}" for i in range(10)]
    for name in lines:
        scheduler.offer([Ticket(name, i, f"{name}{i % 3}", "s") for i in range(20)], 0.0)
    heads = []
    while wave := scheduler.next_wave(0.0):
        heads.append(wave.tickets[0].batch)
        scheduler.finish(wave, 0.0)
    for start in range(0, len(heads) - len(lines), len(lines)):
        assert sorted(heads[start : start + len(lines)]) == sorted(lines)
