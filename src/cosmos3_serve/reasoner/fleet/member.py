"""What the control plane says of the fleet: its members, what they hold and how loaded they are; and its gateways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cosmos3_serve.reasoner.fleet.health import ReplicaSpec
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState


class HeldMedia(NamedTuple):
    """Capacity of a replica's cache of processed media; gateways mirror it (see `gateway/held_media.py`)."""

    bytes: int
    items: int


class Load(NamedTuple):
    """Requests on a replica, whoever sent them, as the replica itself counts.

    Args:
        quiet: its engine has work and computes nothing (`engine/liveness.py`); None: it does not say.
    """

    running: int = 0
    waiting: int = 0
    quiet: bool | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """What a replica offers, as it says when it registers.

    Args:
        url: `http://host:port`, for whoever knows the cluster secret.
        max_num_seqs: requests it works on at once.
        pid: of the process that supervises the engine, on `node`.
    """

    url: str
    max_num_seqs: int
    held: HeldMedia
    node: str = ""
    pid: int = 0
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as the control plane knows it. A slot whose replica died is `starting` and has no url until its
    replacement has registered. `leaving`: it serves, and is about to be replaced. `quiet`: see `Load`."""

    ref: ReplicaRef
    phase: ReplicaState
    service: Service
    leaving: bool = False
    quiet: bool | None = None

    @property
    def replica_id(self) -> str:
        return self.ref.id

    @property
    def incarnation(self) -> int:
        return self.ref.incarnation

    @property
    def url(self) -> str:
        return self.service.url

    @property
    def held(self) -> HeldMedia:
        return self.service.held

    @property
    def max_num_seqs(self) -> int:
        return self.service.max_num_seqs

    @property
    def spec(self) -> ReplicaSpec:
        """For `HealthBook.sync`."""
        return ReplicaSpec(self.ref, self.max_num_seqs, self.phase, self.leaving, self.quiet)


class Standing(NamedTuple):
    """What the fleet has decided about a member, which keeps it for a registry that has lost it.

    Args:
        leaving: as `Member`; `draining`: it takes nothing new.
    """

    leaving: bool = False
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of the fleet a gateway knows: a version means something within one generation only."""

    generation: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What the fleet is sized by.

    Args:
        answers: that gateways wait for, or that questions in their lines will ask for; one with `n=4` counts as four.
        asked: a question came a moment ago: short answers are over when gateways report, and where no replica serves
            there are none.
        seqs: answers that one replica works on at once; 0 while no replica has said so.
        wanted: replicas that are wanted now.
        settled: False while no gateway is heard, or a restarted registry has not heard from everybody yet.
    """

    answers: int
    asked: bool
    seqs: int
    wanted: int
    settled: bool


@dataclass(frozen=True, slots=True)
class FleetView:
    """
    Args:
        failing: replicas could not start, and none has since.
        wanted: replicas, as the load asks for.
        run: of the service, the same for every registry that it starts again.
        settled: False while a restarted registry waits for replicas to report again: a member that is missing then may
            live all the same.
        draining: the whole service ends.
    """

    seen: Seen
    members: tuple[Member, ...]
    loads: Mapping[ReplicaRef, Load]
    settled: bool
    draining: bool
    failing: bool = False
    wanted: int = 0
    run: str = ""


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """What a gateway says of itself, about once a second.

    Args:
        gateway: unlike that of any other gateway process, earlier ones included.
        waiting: names of the readiness checks that fail.
        in_flight: questions that it answers or that wait.
        answers: that it waits for, or that questions in its line will ask for.
        asked_s: seconds since a question wanted a replica, whether or not it got one.
        ended: the run of the service whose end it has heard of, for a registry that has lost it.
        failure: code, detail and remedy if this gateway can never become ready.
        report: the body of /ready.
    """

    gateway: str
    address: str = ""
    port: int = 0
    pid: int = 0
    ready: bool = False
    waiting: tuple[str, ...] = ()
    in_flight: int = 0
    answers: int = 0
    asked_s: float = float("inf")
    ended: str | None = None
    failure: Mapping[str, str] | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
