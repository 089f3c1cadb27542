"""What the service makes of what its fleet says while it starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray.serve
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import Cosmos3Error, ServiceFailure, StartRefused
from cosmos3_serve.reasoner import serve as module
from cosmos3_serve.reasoner.engine.replica import failure_record
from cosmos3_serve.reasoner.fleet.core import Overview
from cosmos3_serve.reasoner.fleet.member import GatewayStatus, HeldMedia, Member, Service
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.serve import _check_failures, _described, _typed
from cosmos3_serve.reasoner.sessions.messages import TableStats
from cosmos3_serve.reasoner.setup import ReasonerSetup, ServedModel, names_of
from cosmos3_serve.settings import ReasonerSettings

SAID = {"code": "model_refused", "detail": "no", "remedy": "another"}
MEMBER = Member(ReplicaRef("replica-0", 1), ReplicaState.READY, Service("http://127.0.0.1:1", 8, HeldMedia(1, 1)))


def fleet(*gateways: GatewayStatus, **failures: dict[str, str]) -> Overview:
    return Overview((MEMBER,), {}, gateways, failures, TableStats("g", 0, {}, {}, {}, 0), 1)


def test_what_no_attempt_can_cure_ends_the_start_with_its_reason() -> None:
    with pytest.raises(StartRefused) as refused:
        _check_failures(fleet(a={**SAID, "kind": "refused"}), serving=False)
    assert (refused.value.stable_code, refused.value.remedy) == ("model_refused", "another")


def test_what_may_pass_is_left_to_serve_and_so_is_one_of_several() -> None:
    _check_failures(fleet(a={**SAID, "kind": "failed"}), serving=False)
    _check_failures(fleet(a={**SAID, "kind": "refused"}), serving=True)


def test_a_gateway_that_can_never_be_ready_ends_the_start() -> None:
    with pytest.raises(StartRefused):
        _check_failures(fleet(GatewayStatus("g", failure=SAID)), serving=True)


@pytest.mark.parametrize("error", [StartRefused, ServiceFailure])
def test_a_failure_of_a_replica_keeps_its_kind_over_the_border(error: type[Cosmos3Error]) -> None:
    told = failure_record(error("no", code="x", remedy="y"))
    again = _typed(told)
    assert type(again) is error
    assert (again.detail, again.stable_code, again.remedy) == ("no", "x", "y")


@pytest.mark.parametrize(
    ("host", "local", "endpoint"),
    [
        ("0.0.0.0", True, "http://127.0.0.1:8001"),
        ("0.0.0.0", False, "http://10.0.0.9:8001"),
        ("::1", True, "http://[::1]:8001"),
    ],
)
def test_the_ready_line_names_an_address_that_leads_here_and_no_secret(host: str, local: bool, endpoint: str) -> None:
    found = tiny_checkpoint()
    model = ServedModel(found.id, found.revision, found.digest, found.weights, found.path, 16_384)
    setup = ReasonerSetup(ReasonerSettings(host=host), model, 8001, "the-secret")
    ready = _described(setup, fleet(GatewayStatus("g", "10.0.0.9", 8001, 77, ready=True)), local)
    assert ready["endpoint"] == endpoint
    assert ready["weights"] == "random"
    assert ready["replicas"][0]["id"] == "replica-0"
    assert "the-secret" not in str(ready)
    assert "the-secret" not in repr(setup)


@pytest.mark.parametrize(
    ("declared", "applications", "refused"),
    [(True, ["cosmos3_reasoner"], True), (True, [], False), (False, ["cosmos3_reasoner"], False), (None, [], False)],
)
def test_a_service_that_the_cluster_s_own_tools_run_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, declared: bool | None, applications: list[str], refused: bool
) -> None:
    def ask(registry: str, method: str) -> bool:
        assert (registry, method) == ("cosmos3_reasoner_fleet", "declared")
        if declared is None:
            raise ValueError("no such actor")
        return declared

    monkeypatch.setattr(module, "ask_fleet", ask)
    monkeypatch.setattr(ray.serve, "status", lambda: SimpleNamespace(applications=dict.fromkeys(applications)))
    if not refused:
        module._refuse_declared(names_of())
        return
    with pytest.raises(StartRefused) as error:
        module._refuse_declared(names_of())
    assert error.value.stable_code == "service_running"
