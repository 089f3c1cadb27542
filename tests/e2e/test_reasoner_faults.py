"""Deaths, drains and failed starts of the reasoner's processes on real Ray, with a stand-in for the engine."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.fleet import PlainFleet, fake_engine, until
from support.ports import MAY_BE_GONE, check_grpc, documented, listeners, place, ray_token
from support.processes import left_after
from support.service import shared_cache

from cosmos3_serve.reasoner.engine.secret import SECRET_ENV
from cosmos3_serve.reasoner.fleet.core import RECOVER_S
from cosmos3_serve.reasoner.setup import SECRET_HEADER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LOST_S = 40.0  # eight seconds of silence, and a machine that is busy otherwise
REPLACED_S = (
    240.0  # Serve's look, two interpreters' starts: 20 s on an idle machine, over 120 s were seen on a busy one
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainFleet]:
    python = fake_engine(tmp_path_factory.mktemp("engine"))
    env = {"COSMOS3_REASONER_WORKERS": "2", "COSMOS3_REASONER_GATEWAYS": "2", "COSMOS3_VLLM_PYTHON": python,
           "COSMOS3_VLLM_ARGS": "--idle", "COSMOS3_REASONER_HANG_TIMEOUT_S": "8"}  # fmt: skip
    with PlainFleet(shared_cache(tmp_path_factory), **env) as running:
        yield running


def refs(fleet: PlainFleet) -> dict[str, int]:
    return {m["id"]: m["incarnation"] for m in fleet.members() if m["phase"] == "ready"}


def test_both_gateways_answer_on_one_port(fleet: PlainFleet) -> None:
    assert len(set(fleet.ready["gateway_pids"])) == 2
    until(lambda: len({fleet.get("/fleet")["pid"] for _ in range(20)}) == 2, 60)


def test_every_socket_is_in_the_handbook_and_rays_ask_for_rays_token(fleet: PlainFleet) -> None:
    public = int(fleet.url.rsplit(":", 1)[1])
    found = listeners(fleet.pid)
    own, table = (documented("reasoner-fleet.md", "What listens"), documented("operations.md", "Listening ports"))
    rays = [row for row in table if row["process"] in ("Ray GCS", "raylet") or row["process"].startswith("Ray ")]
    rows = {place(row): row["asks for"] for row in (*own, *rays)}
    seen = {listener.where(public) for listener in found}
    assert set(rows) - seen <= {MAY_BE_GONE}
    assert seen <= set(rows)
    token = ray_token(fleet.pid)
    for listener in found:
        if rows[listener.where(public)] == "Ray's token (gRPC)":
            check_grpc(listener, token)


def test_gateways_agree_on_fifty_sessions_also_while_the_table_restarts(fleet: PlainFleet) -> None:
    """Each question goes to either gateway, as the kernel likes."""
    homes: dict[str, set[str]] = {f"s{number}": set() for number in range(50)}
    for key in homes:
        homes[key].add(fleet.get(f"/choose/{key}")["replica"])
    until(lambda: {fleet.get("/fleet")["leases"] for _ in range(20)} == {50}, 30)
    before, generation = refs(fleet), fleet.get("/table")["generation"]
    fleet.process("ray::FleetActor").send_signal(signal.SIGKILL)
    fresh = {f"fresh{number}": set[str]() for number in range(10)}
    for _ in range(4):
        for key in fresh:
            fresh[key].add(fleet.get(f"/choose/{key}")["replica"])
        for key in homes:
            homes[key].add(fleet.get(f"/choose/{key}")["replica"])
    assert {len(found) for found in (*homes.values(), *fresh.values())} == {1}
    assert {next(iter(found)) for found in homes.values()} == {"replica-0", "replica-1"}
    until(lambda: not fleet.get("/fleet")["away"] and fleet.get("/table")["generation"] != generation, 60)
    until(lambda: fleet.get("/table")["sessions"] == 60, 20)
    until(lambda: refs(fleet) == before, 20)  # the same lives in the same places


def test_a_killed_engine_is_replaced_in_its_place_and_its_sessions_move(fleet: PlainFleet) -> None:
    victim, other = fleet.members()
    homes = {key: fleet.get(f"/choose/{key}")["replica"] for key in (f"s{n}" for n in range(50))}
    assert set(homes.values()) == {victim["id"], other["id"]}
    mine = next(key for key, home in homes.items() if home == victim["id"])
    psutil.Process(victim["engine"]["engine_pid"]).kill()
    moved = fleet.get(f"/choose/{mine}")
    assert (moved["replica"], moved["outcome"]) == (other["id"], "moved")
    until(lambda: refs(fleet).keys() == {other["id"]}, 20)
    until(lambda: refs(fleet).keys() == {victim["id"], other["id"]}, REPLACED_S, fleet.members)
    back = next(m for m in fleet.members() if m["id"] == victim["id"])
    assert back["incarnation"] > victim["incarnation"]
    assert back["url"] != victim["url"]
    assert back["pid"] != victim["pid"], "Serve has replaced the replica"
    for key, home in homes.items():
        # Those that were asked for while it was away have moved for good; the others wait for their place by its name.
        now = fleet.get(f"/choose/{key}")
        assert now["replica"] == (other["id"] if key == mine else home), f"one that joins moves nothing: {key}"


def test_an_engine_that_computes_nothing_is_replaced_in_its_place(fleet: PlainFleet) -> None:
    """It has work, its figures do not move, and its /health answers."""
    before = {m["id"]: m for m in fleet.members()}
    member = before["replica-1"]
    secret = psutil.Process(member["engine"]["engine_pid"]).environ()[SECRET_ENV]
    httpx.get(f"{member['url']}/busy", headers={SECRET_HEADER: secret}, trust_env=False).raise_for_status()
    until(lambda: refs(fleet).get("replica-1", 0) > member["incarnation"], REPLACED_S)
    assert refs(fleet)["replica-0"] == before["replica-0"]["incarnation"]
    assert not psutil.pid_exists(member["engine"]["engine_pid"])
    assert fleet.log_path.read_text().count('"event": "engine_hung"') == 1


def test_a_killed_replica_takes_its_engine_along_and_is_replaced(fleet: PlainFleet) -> None:
    before = refs(fleet)
    victim = fleet.members()[0]
    psutil.Process(victim["pid"]).kill()
    until(lambda: not psutil.pid_exists(victim["engine"]["engine_pid"]), 15)
    until(lambda: victim["id"] not in refs(fleet) or refs(fleet)[victim["id"]] > before[victim["id"]], LOST_S)
    back = lambda: refs(fleet).keys() == before.keys() and refs(fleet)[victim["id"]] > before[victim["id"]]  # noqa: E731
    until(back, REPLACED_S, fleet.members)
    other = next(name for name in before if name != victim["id"])
    assert refs(fleet)[other] == before[other]


def test_a_killed_gateway_comes_back_on_the_same_port(fleet: PlainFleet) -> None:
    pid = fleet.get("/fleet")["pid"]
    psutil.Process(pid).kill()
    until(lambda: len({fleet.get("/fleet")["pid"] for _ in range(20)} - {pid}) == 2, 120)


def test_what_the_registry_was_told_outlives_it(fleet: PlainFleet) -> None:
    """Replicas report who leaves and who drains, gateways that the service ends."""

    def decided() -> dict[str, tuple[str, bool]]:
        return {m["id"]: (m["phase"], m["leaving"]) for m in fleet.members()}

    def restart_registry() -> None:
        generation = fleet.get("/table")["generation"]
        fleet.process("ray::FleetActor").send_signal(signal.SIGKILL)
        until(lambda: not fleet.get("/fleet")["away"] and fleet.get("/table")["generation"] != generation, 60)

    until(lambda: len(refs(fleet)) == 2, REPLACED_S, fleet.members)
    fleet.get("/tell/renew")
    fleet.get("/tell/drain/replica-1")
    wanted = {"replica-0": ("ready", True), "replica-1": ("draining", True)}
    until(lambda: decided() == wanted, 20, decided)
    time.sleep(3)  # both have heard it with their beats
    restart_registry()
    time.sleep(RECOVER_S + 1)  # until then gateways keep what they saw
    until(lambda: decided() == wanted, 20, decided)
    fleet.get("/tell/end")
    until(lambda: fleet.get("/fleet")["draining"], 20)
    restart_registry()
    time.sleep(RECOVER_S + 1)
    until(lambda: all(fleet.get("/fleet")["draining"] for _ in range(20)), 20)


def test_sigterm_lets_a_long_answer_end_and_leaves_nothing(fleet: PlainFleet) -> None:
    """Ten seconds of lines; without a wait for them the gateway's process is gone in less."""
    with httpx.stream("GET", f"{fleet.url}/answer/100", timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "0"
        fleet.terminate()
        assert list(lines) == [str(number) for number in range(1, 100)]
    assert fleet.wait(60) == 0
    assert left_after(fleet.mark) == {}
    assert '"event": "drain_incomplete"' not in fleet.log_path.read_text()


@pytest.mark.parametrize(
    ("behave", "code", "exit_code"),
    [
        ("model", "model_refused", 3),
        pytest.param("import-error", "vllm_import_failed", 3, marks=pytest.mark.slow),  # tests/reasoner has the words
    ],
)
def test_a_fleet_whose_engines_cannot_start_ends_with_their_reason(
    behave: str, code: str, exit_code: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = {"COSMOS3_VLLM_PYTHON": fake_engine(tmp_path), "COSMOS3_VLLM_ARGS": f"--behave {behave}"}
    service = PlainFleet(shared_cache(tmp_path_factory), **env).launch()
    try:
        assert service.wait(180) == exit_code
    finally:
        service.stop()
    problem = json.loads(service.log_path.read_text().splitlines()[-1])
    assert problem["code"] == code
    assert problem["remedy"]
    assert left_after(service.mark) == {}
