"""The reasoner as applications of a cluster: imports, settings, the shared secret, and leaving a machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema
from support.manifests import KUBERAY_SET

from cosmos3_serve.deploy.render import render
from cosmos3_serve.errors import StartRefused, UsageError
from cosmos3_serve.reasoner import application
from cosmos3_serve.reasoner.engine.replica import NAME
from cosmos3_serve.reasoner.fleet.core import FleetCore
from cosmos3_serve.reasoner.fleet.member import GatewayStatus, HeldMedia, Load, Seen, Service
from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.leave import leave
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode
from cosmos3_serve.reasoner.setup import ReasonerSetup, ServedModel, names_of
from cosmos3_serve.settings import ReasonerSettings

TOKEN = {"RAY_AUTH_TOKEN": "a-token-of-ray"}
MODEL = ServedModel("tiny", "r", "d", "random", Path("here"), 1024)


def config(*sets: str) -> dict[str, Any]:
    files = render("kuberay", service="reasoner", sets=(*KUBERAY_SET, *sets), parts=["deploy"])
    (service,) = [d for f in files for d in f.documents if d["kind"] == "RayService"]
    found: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    return found


@pytest.fixture
def setups(monkeypatch: pytest.MonkeyPatch) -> list[ReasonerSetup]:
    """The checks are tested in test_prepare, the registry in test_roster; here they see what they are given."""
    seen: list[ReasonerSetup] = []
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN["RAY_AUTH_TOKEN"])
    monkeypatch.setattr(application, "settle_model_cache", lambda: None)
    monkeypatch.setattr(application, "prepare", lambda settings: (settings, MODEL))
    monkeypatch.setattr(application, "_registry", seen.append)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 8.0})
    return seen


def test_serve_takes_the_configuration() -> None:
    schema = ServeDeploySchema.model_validate(config("worker.replicas=2"))
    assert [app.name for app in schema.applications] == [names_of().gateways, names_of().replicas]
    assert schema.applications[0].deployments[0].max_replicas_per_node == 1


def test_what_the_manifest_imports_is_here_and_has_the_deployments_that_it_sets(setups: list[ReasonerSetup]) -> None:
    gateways, replicas = config("worker.replicas=2")["applications"]
    assert gateways["import_path"] == f"{application.__name__}:build_gateways"
    assert replicas["import_path"] == f"{application.__name__}:build_replicas"
    front = application.build_gateways(gateways["args"])._bound_deployment
    back = application.build_replicas(replicas["args"])._bound_deployment
    assert (front.name, back.name) == (gateways["deployments"][0]["name"], replicas["deployments"][0]["name"])
    assert (back.name, back.num_replicas, front.num_replicas) == (NAME, 2, 2)
    (one,), (other,) = front.init_args, back.init_args
    assert one.secret == other.secret and one.settings == other.settings
    assert one.settings.ray_address == "auto" and setups == [one]


def test_the_secret_is_the_clusters_and_not_its_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN["RAY_AUTH_TOKEN"] + "\n")
    secret = application.cluster_secret(TOKEN)
    assert secret == application.cluster_secret({"RAY_AUTH_TOKEN_PATH": str(file)}) and len(secret) == 64
    assert secret != application.cluster_secret({"RAY_AUTH_TOKEN": "another"})
    assert TOKEN["RAY_AUTH_TOKEN"] not in secret


@pytest.mark.parametrize("environ", [{}, {"RAY_AUTH_TOKEN": " "}, {"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}])
def test_a_cluster_without_token_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(StartRefused) as refused:
        application.cluster_secret(environ)
    assert refused.value.stable_code == "ray_token_missing"


@pytest.mark.parametrize(("args", "kind"), [({"port": 0}, StartRefused), ({"worker": 2}, UsageError)])
def test_what_cannot_be_is_refused(setups: list[ReasonerSetup], args: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        application.build_replicas(args)
    assert setups == []


class Registry:
    """The real core of the registry, with two machines of one replica and one gateway each."""

    def __init__(self) -> None:
        self.core = FleetCore(AffinityRules(ttl_s=300.0, mode=Mode("soft")), 2)
        self.busy = 2
        self.refs = [self.run("register", Service(f"http://10.0.0.{n}:9", 8, HeldMedia(1, 1))) for n in (1, 2)]
        self.report()

    def run(self, method: str, *args: Any) -> Any:
        return asyncio.run(getattr(self.core, method)(*args))

    def report(self) -> None:
        for number, ref in enumerate(self.refs, 1):
            load = Load(running=self.busy if number == 1 else 5)
            self.run("beat", ref, load)
            status = GatewayStatus(f"g{number}", address=f"10.0.0.{number}", in_flight=load.running)
            self.run("watch", Seen(), status, 0.0)

    def sleep(self, seconds: float) -> None:
        self.busy = max(0, self.busy - 1)
        self.report()

    def phases(self) -> list[ReplicaState]:
        return [member.phase for member in self.run("overview").members]


def test_a_machine_that_leaves_takes_nothing_new_and_waits_for_its_own_answers_only() -> None:
    registry = Registry()
    assert leave(registry.run, "10.0.0.1", fleet=False, timeout_s=60, sleep=registry.sleep)
    assert registry.busy == 0
    assert registry.phases() == [ReplicaState.DRAINING, ReplicaState.READY]


def test_when_the_fleet_leaves_every_answer_counts() -> None:
    registry = Registry()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            registry.refs.pop()  # the other machine's gateway has said that it is quiet
            registry.run("watch", Seen(), GatewayStatus("g2", address="10.0.0.2"), 0.0)
        registry.sleep(seconds)

    assert leave(registry.run, "10.0.0.1", fleet=True, timeout_s=60, sleep=sleep)
    assert len(slept) >= 4 and asyncio.run(registry.core.watch(Seen(), None, 0.0)).draining


def test_answers_that_do_not_end_are_said() -> None:
    registry = Registry()
    assert not leave(registry.run, "10.0.0.2", fleet=False, timeout_s=0.05, sleep=lambda seconds: None)


def test_a_machine_without_replicas_has_nothing_to_wait_for() -> None:
    registry = Registry()
    assert leave(registry.run, "10.0.0.9", fleet=False, timeout_s=5, sleep=lambda seconds: None)
    assert registry.phases() == [ReplicaState.READY] * 2
    assert ReasonerSettings().workers.plain() == 1
