"""The generator as applications of a cluster: what Serve and KubeRay import, and what a manifest says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
import ray.serve
import yaml
from ray.serve.schema import ServeDeploySchema
from support.manifests import KUBERAY_SET

from cosmos3_serve.contract.wire import APP_NAME
from cosmos3_serve.deploy.render import render
from cosmos3_serve.errors import StartRefused, UsageError
from cosmos3_serve.generator import application, leave
from cosmos3_serve.generator.guardrails import GUARD, GUARD_APP
from cosmos3_serve.generator.http.ingress import NAME
from cosmos3_serve.generator.prepare import Prepared
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint


def config(*sets: str) -> dict[str, Any]:
    files = render("kuberay", service="generator", sets=(*KUBERAY_SET, *sets), parts=["deploy"])
    (service,) = [d for f in files for d in f.documents if d["kind"] == "RayService"]
    found: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    return found


def names(app: Any) -> set[str]:
    """Deployments of a bound application, the bound arguments among it."""
    bound = app._bound_deployment
    found = {bound.name}
    for argument in (*bound.init_args, *bound.init_kwargs.values()):
        if hasattr(argument, "_bound_deployment"):
            found |= names(argument)
    return found


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GeneratorSettings]:
    """The checks are tested in test_prepare; here they see what they are given."""
    seen: list[GeneratorSettings] = []
    checkpoint = Checkpoint.__new__(Checkpoint)

    def prepare(settings: GeneratorSettings) -> Prepared:
        seen.append(settings)
        return Prepared(settings, checkpoint, "0" * 40, None)

    monkeypatch.setattr(application, "prepare", prepare)
    monkeypatch.setattr(application, "settle_model_cache", lambda: None)
    return seen


def test_serve_takes_the_configuration() -> None:
    for sets in ((), ("settings.guardrails=off", "settings.device=cpu", "worker.gpus=0")):
        schema = ServeDeploySchema.model_validate(config(*sets))
        assert str(schema.proxy_location.value) == "Disabled"
        assert all(app.route_prefix is None for app in schema.applications)
    assert [app.name for app in ServeDeploySchema.model_validate(config()).applications] == [APP_NAME, GUARD_APP]


def test_what_the_manifest_imports_is_here_and_has_the_deployments_that_it_sets(
    prepared: list[GeneratorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, guard = config("settings.device=cpu")["applications"]
    assert app["import_path"] == f"{application.__name__}:{application.build.__name__}"
    assert guard["import_path"] == f"{application.__name__}:{application.build_guard.__name__}"
    monkeypatch.setattr(application, "prove", lambda settings, cache: object())
    built = application.build(app["args"])
    assert {d["name"] for d in app["deployments"]} == names(built) == {NAME, GeneratorSettings().model}
    assert {d["name"] for d in guard["deployments"]} == names(application.build_guard(guard["args"])) == {GUARD}


def test_arguments_win_over_the_environment_and_the_cluster_is_always_joined(
    prepared: list[GeneratorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_MAX_BATCH_SIZE", "8")
    monkeypatch.setenv("COSMOS3_QUEUE_LIMIT", "7")
    application.build({"engine": "diffusers", "device": "cpu", "max_batch_size": 2, "ray_address": "10.0.0.1:1"})
    (settings,) = prepared
    assert (settings.max_batch_size, settings.queue_limit, settings.ray_address) == (2, 7, "auto")


@pytest.mark.parametrize(
    ("args", "kind", "code"),
    [
        ({"engine": "diffusers", "port": 0}, StartRefused, "port_unavailable"),
        ({"engine": "diffusers", "max_batch": 2}, UsageError, "usage"),
        ({"engine": "other"}, UsageError, "usage"),
    ],
)
def test_what_cannot_be_is_refused(
    prepared: list[GeneratorSettings], args: dict[str, Any], kind: type[Exception], code: str
) -> None:
    with pytest.raises(kind) as refused:
        application.build(args)
    assert refused.value.stable_code == code  # type: ignore[attr-defined]


def test_without_guardrails_their_application_is_refused(prepared: list[GeneratorSettings]) -> None:
    with pytest.raises(StartRefused) as refused:
        application.build_guard({"engine": "diffusers", "guardrails": False})
    assert refused.value.stable_code == "guard_not_wanted"


def test_the_checks_are_those_of_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NPA_COSMOS3_RAY_TOKEN", "NPA_COSMOS3_RAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(application, "settle_model_cache", lambda: None)
    with pytest.raises(StartRefused) as refused:
        application.build({"engine": "diffusers", "output_path": str(tmp_path), "guardrails": False})
    assert refused.value.stable_code == "token_missing"


def test_leaving_waits_for_the_port_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    open_for = 3.0

    class Open:
        def close(self) -> None: ...

    def connect(address: tuple[str, int], timeout: float) -> Open:
        assert address == ("10.0.0.1", 8000)
        if now[0] >= open_for:
            raise ConnectionRefusedError
        return Open()

    monkeypatch.setattr(leave.socket, "create_connection", connect)
    monkeypatch.setattr(leave.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(leave.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert leave._closed("10.0.0.1", 8000, until=10.0) and now[0] == 3.0
    now[0] = 0.0
    open_for = 99.0
    assert not leave._closed("10.0.0.1", 8000, until=5.0) and now[0] == 5.0


@pytest.mark.parametrize("already", [False, True])
def test_leaving_drains_within_its_time_and_ends_when_the_port_is_closed(
    monkeypatch: pytest.MonkeyPatch, already: bool
) -> None:
    """Doubles of Ray and of the ingress's handle: who asks second is answered at once, and waits for the port too."""
    drains: list[float] = []
    shut: list[bool] = []

    class Answer:
        def __init__(self, value: Any) -> None:
            self.value = value

        def result(self, timeout_s: float) -> Any:
            assert timeout_s > 0
            return self.value

    class Method:
        def __init__(self, function: Any) -> None:
            self.remote = function

    class Ingress:
        status = Method(lambda: Answer({"address": "10.0.0.1", "port": 8000}))
        drain = Method(lambda seconds: Answer(drains.append(seconds)))

    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(ray, "init", lambda **options: asked.append((options["address"], 0)))
    monkeypatch.setattr(ray, "shutdown", lambda: shut.append(True))
    monkeypatch.setattr(ray.serve, "get_app_handle", lambda name: Ingress if name == APP_NAME else None)
    monkeypatch.setattr(
        leave, "_closed", lambda address, port, until: not already and (address, port) == ("10.0.0.1", 8000)
    )
    assert leave.leave(630.0) is not already
    assert asked == [("auto", 0)] and shut == [True]
    # Drain, results, connections: all of it ends before the hook's own time does.
    assert len(drains) == 1 and 600 <= drains[0] <= 630 - leave.RESERVE_S


def test_without_a_cluster_there_is_nothing_to_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(ray, "init", init)
    assert leave.main(["--timeout", "5"]) == leave.NOT_DONE
