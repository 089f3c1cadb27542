"""The session table alone: reservations, bindings, idleness, bounds, gateways that die, terms."""

from collections import Counter
from random import Random

import pytest

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView
from cosmos3_serve.reasoner.sessions.decide import Action
from cosmos3_serve.reasoner.sessions.messages import Acquire, Flush, FlushReply, Grant, PageAsk, Peek, Touch
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode, Outcome
from cosmos3_serve.reasoner.sessions.table import SessionTable

S = ReplicaState
TTL = 300.0


def fleet(**states: ReplicaState | tuple[int, ReplicaState]) -> Fleet:
    views = {n: ReplicaView(*s) if isinstance(s, tuple) else ReplicaView(1, s) for n, s in states.items()}
    return Fleet(views)


FOUR = fleet(a=S.READY, b=S.READY, c=S.READY, d=S.READY)
TWO = fleet(a=S.READY, b=S.READY)


def ref(name: str, incarnation: int = 1) -> ReplicaRef:
    return ReplicaRef(name, incarnation)


class Talk:
    """One gateway's side of the conversation, with its sequence numbers and live counts."""

    def __init__(self, table: SessionTable, name: str = "g") -> None:
        self.table, self.name, self.seq = table, name, 0
        self.live: Counter[str] = Counter()
        self.seen = 0

    def acquire(self, key: str, now: float, view: Fleet = FOUR, refused: frozenset[ReplicaRef] = frozenset()) -> Grant:
        self.seq += 1
        self.live[key] += 1
        return self.table.acquire(
            Acquire(self.name, self.seq, key, self.live[key], view, dict.fromkeys(refused, 1.0)), now
        )

    def end(self, key: str) -> None:
        self.live[key] -= 1

    def flush(self, now: float, *touches: Touch, refused: tuple[tuple[str, ReplicaRef], ...] = ()) -> FlushReply:
        self.seq += 1
        live = {k: n for k, n in self.live.items() if n}
        reply = self.table.flush(Flush(self.name, self.seq, live, touches, refused, self.seen), now)
        self.seen = reply.version
        return reply

    def whole(self, key: str, now: float, view: Fleet = FOUR) -> Grant:
        """Ask, be accepted, end, and tell."""
        grant = self.acquire(key, now, view)
        self.end(key)
        touches = [Touch(key, grant.home, grant.term, 0.0)] if grant.home else []
        self.flush(now, *touches)
        return grant


def table(mode: Mode = Mode.SOFT, **rules: float) -> SessionTable:
    return SessionTable(AffinityRules(ttl_s=TTL, mode=mode, **rules), "g1")  # type: ignore[arg-type]


def test_thirty_two_at_once_give_eight_each() -> None:
    talk = Talk(table())
    spread = Counter(talk.acquire(f"s{i}", 0).replica for i in range(32))
    assert set(spread.values()) == {8}
    assert talk.table.stats().live == {"a": 8, "b": 8, "c": 8, "d": 8}


def test_reservations_are_load_and_no_bindings() -> None:
    talk = Talk(table())
    first = talk.acquire("s", 0)
    assert (first.outcome, first.bound, first.replica) == (Outcome.NEW, False, ref("a"))
    view = talk.table.peek(Peek("s", FOUR), 0)
    assert (view.home, view.pending, view.live) == (None, ref("a"), 1)
    assert talk.table.stats().live == {"a": 1}


def test_ten_first_questions_share_one_reservation_and_bind_once() -> None:
    talk, other = Talk(table()), Talk(SessionTable(AffinityRules(), "g1"), "h")
    other.table = talk.table
    grants = [(talk if i % 2 else other).acquire("s", 0) for i in range(10)]
    assert {g.replica for g in grants} == {ref("a")}
    assert Counter(g.outcome for g in grants) == {Outcome.NEW: 1, Outcome.HIT: 9}
    assert len(talk.table) == 1
    assert talk.table.stats().live == {"a": 1}, "load counts sessions"
    updates = talk.flush(0, Touch("s", ref("a"), grants[0].term, 0)).updates
    assert [t.home for t in updates] == [ref("a")]


def test_a_refusal_ends_the_reservation_and_the_second_choice_is_elsewhere() -> None:
    talk = Talk(table())
    assert talk.acquire("s", 0).replica == ref("a")
    talk.end("s")
    again = talk.acquire("s", 0, refused=frozenset({ref("a")}))
    assert (again.outcome, again.replica) == (Outcome.NEW, ref("b"))
    assert talk.table.stats().live == {"b": 1}
    talk.end("s")
    talk.flush(0, refused=(("s", ref("b")),))
    assert len(talk.table) == 0
    assert talk.table.stats().live == {}


def test_a_refusal_by_an_earlier_life_leaves_the_new_reservation() -> None:
    talk = Talk(table())
    restarted = fleet(a=(2, S.READY))
    assert talk.acquire("s", 0, restarted).replica == ref("a", 2)
    talk.flush(0, refused=(("s", ref("a", 1)),))
    assert talk.table.peek(Peek("s", restarted), 0).pending == ref("a", 2)


def test_the_first_acceptance_binds_and_a_later_one_elsewhere_does_not() -> None:
    talk = Talk(table())
    one = talk.acquire("s", 0)
    two = talk.acquire("s", 0, refused=frozenset({ref("a")}))
    assert (one.replica, two.replica) == (ref("a"), ref("b"))
    talk.flush(0, Touch("s", ref("b"), two.term, 0))
    reply = talk.flush(0, Touch("s", ref("a"), one.term, 0))
    assert [c.home for c in reply.corrections] == [ref("b")]
    assert talk.table.peek(Peek("s", FOUR), 0).home == ref("b")


def test_idle_time_runs_from_the_end_of_the_last_request() -> None:
    talk = Talk(table())
    assert talk.acquire("s", 0).replica == ref("a")
    talk.flush(0, Touch("s", ref("a"), 1, 0))
    late = 10 * TTL
    talk.flush(late)  # the request runs on: heartbeats only
    assert len(talk.table) == 1
    talk.end("s")
    talk.flush(late + 1, Touch("s", ref("a"), 1, 1.0))
    assert talk.acquire("s", late + TTL - 0.1).outcome is Outcome.HIT


@pytest.mark.parametrize("swept", [False, True])
def test_after_the_ttl_a_session_is_new_and_counted_expired_once(swept: bool) -> None:
    talk = Talk(table())
    talk.whole("s", 0)
    if swept:
        talk.flush(TTL)
        assert len(talk.table) == 0
    assert talk.acquire("s", TTL).outcome is Outcome.NEW
    assert talk.table.stats().expired == {"a": 1}
    talk.flush(TTL + 1)
    assert talk.table.stats().expired == {"a": 1}


def test_turns_every_eight_tenths_of_the_ttl_stay() -> None:
    talk = Talk(table())
    talk.whole("s", 0)
    for i in range(1, 20):
        talk.whole(f"noise{i}", i * 0.8 * TTL)
        assert talk.whole("s", i * 0.8 * TTL).outcome is Outcome.HIT
    assert talk.whole("s", 19 * 0.8 * TTL + 1.1 * TTL).outcome is Outcome.NEW


def test_a_joiner_moves_nothing_and_is_not_flooded() -> None:
    talk = Talk(table())
    for i in range(400):
        talk.whole(f"s{i}", 0, TWO)
    more = fleet(a=S.READY, b=S.READY, c=S.READY)
    homes = {f"s{i}": talk.whole(f"s{i}", 1, more) for i in range(400)}
    assert {g.outcome for g in homes.values()} == {Outcome.HIT}
    assert ref("c") not in {g.replica for g in homes.values()}
    spread = Counter(talk.whole(f"n{i}", 2, more).replica for i in range(30))
    assert set(spread.values()) == {10}


def test_a_joiner_among_busy_replicas_gets_no_more_than_the_others_have() -> None:
    talk = Talk(table())
    for i in range(16):
        talk.acquire(f"s{i}", 0, TWO)
    more = fleet(a=S.READY, b=S.READY, c=S.READY)
    for i in range(10):
        talk.acquire(f"n{i}", 0, more)
    load = talk.table.stats().live
    assert sum(load.values()) == 26
    assert load["c"] <= max(load["a"], load["b"])


def test_a_dead_home_moves_its_session_once_and_all_its_requests_follow() -> None:
    talk = Talk(table())
    talk.whole("s", 0)
    dead = fleet(a=S.DEAD, b=S.READY, c=S.READY)
    moved = [talk.acquire("s", 1, dead) for _ in range(3)]
    assert {g.replica for g in moved} == {ref("b")}
    assert {g.outcome for g in moved} == {Outcome.MOVED}
    assert talk.table.peek(Peek("s", dead), 1).home == ref("a"), "no binding before the new one accepted"
    talk.flush(1, Touch("s", ref("b"), moved[0].term, 0))
    back = fleet(a=S.READY, b=S.READY, c=S.READY)
    assert talk.acquire("s", 2, back).replica == ref("b")


@pytest.mark.parametrize("state", [S.DEAD, S.DRAINING, S.STARTING])
def test_hard_mode_waits_until_the_home_serves_or_leaves(state: ReplicaState) -> None:
    talk = Talk(table(Mode.HARD))
    talk.whole("s", 0)
    refused = talk.acquire("s", 1, fleet(a=state, b=S.READY))
    assert (refused.replica, refused.why) == (None, Action.LOST)
    talk.end("s")
    assert talk.acquire("s", 2, TWO).outcome is Outcome.HIT
    talk.end("s")
    again = talk.acquire("s", 3, fleet(a=(2, S.READY), b=S.READY))
    assert (again.replica, again.outcome) == (ref("a", 2), Outcome.MOVED)
    talk.end("s")
    gone = talk.acquire("s", 4, fleet(b=S.READY))
    assert (gone.replica, gone.outcome) == (ref("b"), Outcome.MOVED)


def test_a_full_home_spills_this_request_and_keeps_the_session() -> None:
    soft, hard = Talk(table()), Talk(table(Mode.HARD))
    full = fleet(a=S.SATURATED, b=S.READY)
    for talk in (soft, hard):
        talk.whole("s", 0)
    spilled = soft.acquire("s", 1, full)
    assert (spilled.replica, spilled.outcome, spilled.home) == (ref("b"), Outcome.SPILLED, ref("a"))
    assert soft.acquire("s", 2, TWO).replica == ref("a")
    assert hard.acquire("s", 1, full).why is Action.BUSY


def test_without_any_replica_there_is_no_grant_and_nothing_is_kept() -> None:
    talk = Talk(table())
    assert talk.acquire("s", 0, Fleet()).replica is None
    assert talk.acquire("t", 0, fleet(a=S.SATURATED)).replica is None
    assert len(talk.table) == 0


def test_the_table_never_grows_past_its_bound_and_evicts_the_longest_idle() -> None:
    talk = Talk(table(max_sessions=3))
    for i, name in enumerate("xyz"):
        talk.whole(name, i)
    talk.whole("x", 5)
    talk.whole("new", 6)
    assert len(talk.table) == 3
    assert talk.table.peek(Peek("y", FOUR), 6).home is None
    assert talk.table.peek(Peek("x", FOUR), 6).home is not None
    assert sum(talk.table.stats().evicted.values()) == 1


def test_a_table_full_of_live_sessions_serves_without_binding_and_in_agreement() -> None:
    talk = Talk(table(max_sessions=2))
    talk.acquire("x", 0)
    talk.acquire("y", 0)
    over = [talk.acquire("z", 0) for _ in range(5)]
    assert len({g.replica for g in over}) == 1
    assert all(g.outcome is Outcome.NONE and g.home is None and g.replica for g in over)
    assert len(talk.table) == 2
    assert talk.table.stats().overflow == 5


def test_a_gateway_that_dies_frees_what_it_held() -> None:
    talk, other = Talk(table()), Talk(table(), "h")
    other.table = talk.table
    grant = talk.acquire("s", 0)
    talk.flush(0, Touch("s", ref("a"), grant.term, 0))
    talk.acquire("reserved", 1)
    other.flush(31.5)
    assert talk.table.stats().live == {}
    assert len(talk.table) == 1, "the binding stays, the reservation nobody accepted goes"
    assert other.acquire("s", TTL).outcome is Outcome.HIT
    other.end("s")
    other.flush(TTL)
    assert other.acquire("s", TTL + 2).outcome is Outcome.NEW, "idle since its gateway was last heard"


def test_an_overtaken_report_changes_no_count() -> None:
    talk = Talk(table())
    grant = talk.acquire("s", 0)
    old = Flush("g", 2, {"s": 1}, (Touch("s", ref("a"), grant.term, 0),))
    talk.end("s")
    talk.seq = 5
    talk.flush(1, Touch("s", ref("a"), grant.term, 0))
    assert talk.table.stats().live == {}
    talk.table.flush(old, 2)
    assert talk.table.stats().live == {}


def test_a_reservation_made_after_a_report_was_written_survives_it() -> None:
    talk = Talk(table())
    late = Flush("g", 1, {})
    talk.seq = 1
    talk.acquire("s", 0)
    talk.table.flush(late, 0)
    assert talk.table.stats().live == {"a": 1}


def test_a_new_table_adopts_what_gateways_know_and_the_higher_term_wins() -> None:
    fresh = table()
    one, two = Talk(fresh, "g"), Talk(fresh, "h")
    one.flush(0, Touch("s", ref("a"), 4, 10.0), Touch("old", ref("a"), 9, TTL))
    assert len(fresh) == 1, "what has expired is not brought back"
    reply = two.flush(0, Touch("s", ref("b"), 7, 20.0))
    assert reply.corrections == ()
    assert [c.home for c in one.flush(1, Touch("s", ref("a"), 4, 11.0)).corrections] == [ref("b")]
    assert one.acquire("new", 2).term == 8, "new terms go on above all that was adopted"
    assert one.acquire("s", 289.9).outcome is Outcome.HIT


def test_while_it_recovers_a_table_places_by_hash_and_gives_way_to_reports() -> None:
    rules = AffinityRules(ttl_s=TTL)
    one, two = SessionTable(rules, "g2", recover_until=5), SessionTable(rules, "g3", recover_until=5)
    names = [f"s{i}" for i in range(40)]
    assert [Talk(one).acquire(n, 1).replica for n in names] == [Talk(two).acquire(n, 2).replica for n in names]
    talk = Talk(one, "h")
    placed = talk.acquire("t", 1)
    assert placed.replica is not None
    talk.flush(1, Touch("t", placed.replica, placed.term, 0))
    known = ref("d") if placed.replica != ref("d") else ref("c")
    Talk(one, "k").flush(2, Touch("t", known, 3, 0))
    assert talk.table.peek(Peek("t", FOUR), 3).home == known


def test_peek_changes_nothing() -> None:
    talk = Talk(table())
    talk.whole("s", 0)
    for key in ("s", "unknown"):
        for _ in range(3):
            would = talk.table.peek(Peek(key, FOUR), 1).would
        assert would.replica == (ref("a") if key == "s" else ref("b"))
    assert talk.table.peek(Peek("s", FOUR), TTL).would.outcome is Outcome.NEW
    assert talk.table.stats().expired == {}
    assert len(talk.table) == 1


def test_terms_only_rise_so_an_old_home_never_comes_back() -> None:
    talk = Talk(table())
    first = talk.whole("s", 0)
    talk.whole("s", 1, fleet(a=S.DEAD, b=S.READY))
    reply = talk.flush(2, Touch("s", ref("a"), first.term, 0))
    assert [c.home for c in reply.corrections] == [ref("b")]


def test_of_equal_terms_the_first_told_stays() -> None:
    fresh = table()
    Talk(fresh, "g").flush(0, Touch("s", ref("a"), 4, 0.0))
    reply = Talk(fresh, "h").flush(0, Touch("s", ref("b"), 4, 0.0))
    assert [c.home for c in reply.corrections] == [ref("a")]


def test_a_move_is_told_even_if_the_table_has_evicted_the_session_since() -> None:
    talk, reader = Talk(table(max_sessions=1)), Talk(table(), "h")
    reader.table = talk.table
    grant = talk.whole("s", 0)
    talk.whole("other", 1)
    heard = {t.key: (t.home, t.term, t.idle_s) for t in reader.flush(2).updates}
    assert heard["s"] == (grant.home, grant.term, 2.0)
    assert talk.table.peek(Peek("s", FOUR), 2).home is None


# ---- pages ----------------------------------------------------------------------------------------------------------


def pages(table: SessionTable, owner: str, limit: int, now: float) -> list[list[str]]:
    """The keys of every page, asked for in turn."""
    found, after, more = [], "", True
    while more:
        page = table.page(PageAsk(owner, after, limit), now)
        found.append([row.key for row in page.rows])
        more = page.more
        after = page.rows[-1].key if page.rows else after
    return found


def test_pages_hold_every_session_of_one_owner_once_and_nobody_elses() -> None:
    table = SessionTable(AffinityRules(ttl_s=TTL), "one")
    talk = Talk(table)
    for number in (7, 3, 9, 1, 0, 5, 8, 2, 6, 4):
        for owner in ("aa", "ab", "b"):
            talk.whole(f"{owner}{number}", 0.0)
    for limit, lengths in ((4, [4, 4, 2]), (5, [5, 5]), (10, [10]), (1, [1] * 10)):
        for owner in ("aa", "ab", "b"):
            found = pages(table, owner, limit, 1.0)
            assert [len(page) for page in found] == lengths
            assert [key for page in found for key in page] == [f"{owner}{number}" for number in range(10)]
    assert pages(table, "c", 5, 1.0) == [[]]


def test_a_cursor_of_somebody_else_leads_to_nothing_of_theirs() -> None:
    table = SessionTable(AffinityRules(ttl_s=TTL), "one")
    talk = Talk(table)
    for key in ("a1", "a2", "b1", "b2"):
        talk.whole(key, 0.0)
    assert [row.key for row in table.page(PageAsk("b", after="a1"), 1.0).rows] == ["b1", "b2"]
    assert table.page(PageAsk("a", after="b1"), 1.0).rows == ()


def test_a_row_tells_home_reservation_requests_and_idleness() -> None:
    table = SessionTable(AffinityRules(ttl_s=TTL), "one")
    talk, other = Talk(table), Talk(table, "h")
    first = talk.acquire("k", 0.0)
    (row,) = table.page(PageAsk(""), 1.0).rows
    assert (row.home, row.pending, row.live, row.idle_s) == (None, first.replica, 1, 0.0)
    talk.flush(1.0, Touch("k", ref(first.replica.id), first.term, 0.0))
    other.acquire("k", 2.0)
    (row,) = table.page(PageAsk(""), 3.0).rows
    assert (row.home, row.pending, row.live) == (first.replica, None, 2)
    for one in (talk, other):
        one.end("k")
        one.flush(10.0)
    (row,) = table.page(PageAsk(""), 14.0).rows
    assert (row.live, row.idle_s) == (0, 14.0 - 1.0)


def test_what_is_over_is_on_no_page_whether_or_not_it_was_swept() -> None:
    table = SessionTable(AffinityRules(ttl_s=TTL), "one")
    talk = Talk(table)
    talk.whole("a", 0.0)
    talk.whole("b", 100.0)
    talk.whole("c", 0.0)
    assert [len(page) for page in pages(table, "", 1, TTL - 1)] == [1, 1, 1]
    assert pages(table, "", 1, TTL + 1) == [["b"]]
    table.sweep(TTL + 1)
    assert pages(table, "", 1, TTL + 1) == [["b"]]
    assert table._bindings._keys == ["b"]


def test_the_order_of_keys_stays_in_step_with_the_entries() -> None:
    table = SessionTable(AffinityRules(ttl_s=TTL, max_sessions=8), "one")
    talk = Talk(table)
    generator = Random(7)
    for step in range(2_000):
        key, now = f"k{generator.randrange(30)}", step * 10.0
        grant = talk.acquire(key, now)
        talk.end(key)
        accepted = grant.home is not None and generator.random() < 0.7
        if accepted and grant.home is not None:
            talk.flush(now, Touch(key, grant.home, grant.term, 0.0))
        else:
            talk.flush(now)
        bindings = table._bindings
        assert bindings._keys == sorted(bindings._entries)
        assert len(bindings) <= 8
