"""A renewal over a double of the cluster: in which order things happen, and what becomes of it when something fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cosmos3_serve.reasoner.fleet.core import Overview
from cosmos3_serve.reasoner.fleet.member import GatewayStatus, HeldMedia, Member, Service
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.renewal import Phase, Renewal
from cosmos3_serve.reasoner.sessions.messages import TableStats
from cosmos3_serve.settings import ReasonerSettings

SETTINGS = ReasonerSettings(workers=2, gateways=2, start_timeout_s=100, drain_timeout_s=50)
STATS = TableStats(generation="g", sessions=0, live={}, expired={}, evicted={}, overflow=0, gateways=0)
EMPTY: Mapping[str, Mapping[str, str]] = {}


def member(number: int, life: int = 1, *, leaving: bool = False, url: str = "http://x") -> Member:
    service = Service(url, 8, HeldMedia(1, 1))
    return Member(ReplicaRef(f"replica-{number}", life), ReplicaState.READY, service, leaving)


@dataclass
class Cluster:
    """A double: two replicas and two gateways of an old version, which the test replaces by hand."""

    members: list[Member] = field(default_factory=lambda: [member(0), member(1)])
    gateways_: list[str] = field(default_factory=lambda: ["a", "b"])
    free: bool = True
    wanted: int = 2
    broken: bool = False
    did: list[str] = field(default_factory=list)

    def mark(self, yes: bool) -> tuple[ReplicaRef, ...]:
        self.did.append(f"mark {yes}")
        return tuple(m.ref for m in self.members)

    def overview(self) -> Overview:
        if self.broken:
            raise TimeoutError
        gateways = tuple(GatewayStatus(name, ready=True) for name in self.gateways_)
        return Overview(tuple(self.members), {}, gateways, EMPTY, STATS, self.wanted)

    def room(self) -> bool:
        return self.free

    def replicas(self, *, surge: bool) -> None:
        if self.broken:
            raise TimeoutError
        self.did.append(f"replicas surge={surge}")

    def gateways(self) -> None:
        self.did.append("gateways")


class Watch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def renewal(cluster: Cluster, watch: Watch | None = None) -> Renewal:
    return Renewal(SETTINGS, cluster, watch or Watch())


def test_nothing_happens_unasked() -> None:
    cluster = Cluster()
    renewal(cluster).step()
    assert cluster.did == []


def test_replicas_first_then_gateways() -> None:
    cluster = Cluster()
    made = renewal(cluster)
    made.ask()
    made.step()
    assert cluster.did == ["mark True", "replicas surge=True"], "sessions stop settling before the first one goes"
    cluster.members = [member(0), member(1), member(2)]
    made.step()
    cluster.members = [member(1), member(2), member(3)]
    made.step()
    assert made.phase is Phase.REPLICAS, "an old one serves"
    cluster.members = [member(2), member(3)]
    made.step()
    assert cluster.did[2:] == ["gateways"]
    cluster.gateways_ = ["b", "c"]
    made.step()
    assert made.phase is Phase.GATEWAYS
    cluster.gateways_ = ["c", "d"]
    made.step()
    assert made.phase is Phase.IDLE
    made.step()
    assert len(cluster.did) == 3


def test_a_fresh_one_in_an_old_place_is_fresh() -> None:
    cluster = Cluster()
    made = renewal(cluster)
    made.ask()
    made.step()
    cluster.members = [member(0, 2), member(1, 2)]
    made.step()
    assert made.phase is Phase.GATEWAYS


def test_without_room_an_old_one_goes_first() -> None:
    cluster = Cluster(free=False)
    made = renewal(cluster)
    made.ask()
    made.step()
    assert cluster.did == ["mark True", "replicas surge=False"]
    cluster.members = [member(0, 1, url=""), member(1)]
    made.step()
    assert made.phase is Phase.REPLICAS


def test_one_that_the_load_asks_for_meanwhile_is_not_waited_for() -> None:
    cluster = Cluster(wanted=3)
    made = renewal(cluster)
    made.ask()
    made.step()
    cluster.members = [member(0, 2), member(1, 2)]
    made.step()
    assert made.phase is Phase.GATEWAYS


def test_a_fleet_that_sleeps_has_gateways_to_renew() -> None:
    cluster = Cluster(members=[], wanted=0)
    made = renewal(cluster)
    made.ask()
    made.step()
    made.step()
    assert made.phase is Phase.GATEWAYS


def test_what_fails_is_tried_again() -> None:
    cluster = Cluster(broken=True)
    made = renewal(cluster)
    made.ask()
    made.step()
    assert made.phase is Phase.IDLE
    cluster.broken = False
    made.step()
    assert made.phase is Phase.REPLICAS
    cluster.broken = True
    made.step()
    cluster.broken = False
    cluster.members = [member(2), member(3)]
    made.step()
    assert made.phase is Phase.GATEWAYS


def test_one_that_does_not_get_on_is_given_up_and_sessions_settle_everywhere_again() -> None:
    cluster, watch = Cluster(), Watch()
    made = renewal(cluster, watch)
    made.ask()
    made.step()
    watch.now = 100 + 50 + 119
    made.step()
    assert made.phase is Phase.REPLICAS
    watch.now += 100 + 50 + 121
    made.step()
    assert made.phase is Phase.IDLE
    assert cluster.did[-1] == "mark False"


def test_progress_gives_it_new_time() -> None:
    cluster, watch = Cluster(), Watch()
    made = renewal(cluster, watch)
    made.ask()
    made.step()
    for now, members in ((200.0, [member(0), member(1), member(2)]), (400.0, [member(1), member(2)])):
        watch.now, cluster.members = now, members
        made.step()
    assert made.phase is Phase.REPLICAS


def test_asked_twice_it_runs_once() -> None:
    cluster = Cluster()
    made = renewal(cluster)
    made.ask()
    made.step()
    made.ask()
    cluster.members, cluster.gateways_ = [member(2), member(3)], ["a", "b"]
    made.step()
    cluster.gateways_ = ["c", "d"]
    made.step()
    made.step()
    assert made.phase is Phase.IDLE
    assert cluster.did.count("mark True") == 1
