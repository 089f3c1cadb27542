"""Act a scenario: real client processes, a service, a store, faulty ways to both, and the auditor after every run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from support.auditor import Auditor, Bucket, Folder, Place, generated_twice
from support.baseline_server import BaselineServer, Faults
from support.flaky import Fault, FlakyProxy
from support.local_faults import LocalFaults, start
from support.mortal_server import MortalServer
from support.s3 import LocalS3, boto
from support.scenario import Run, Scenario, sample

TIMEOUT_S = 60
TRIES = 8  # of resuming, once nothing is broken on purpose any more
AWAY = 6  # requests that a dead service refuses
FOR_GOOD = {"samples_failed", "media_invalid"}


@dataclass
class Wire:
    """What one client does over the network, counted; at a step it may die or be held."""

    run: Run = field(default_factory=Run)
    steps: int = 0
    at_service: int = 0
    at_storage: int = 0
    hold_at: int = 0
    process: Any = None
    held: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, run: Run, hold_at: int = 0) -> None:
        self.run, self.steps, self.at_service, self.at_storage, self.hold_at = run, 0, 0, 0, hold_at

    def step(self) -> bool:
        """One more request; True where it must be carried out before the client dies."""
        with self.lock:
            self.steps += 1
            at = self.steps
        if at == self.hold_at:
            self.held.set()
            self.go.wait(TIMEOUT_S)
        if at == self.run.die_at and not self.run.die_after:
            self.kill()
        return at == self.run.die_at and self.run.die_after

    def kill(self) -> None:
        self.process.kill()
        wait([self.process.sentinel], 10)  # join() is the other thread's: only one may fetch the exit code


class Client:
    """One machine with a journal of its own, and its ways to the service and to storage."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world, self.wire = name, world, Wire()
        self.folder = world.base / name
        self.folder.mkdir()
        self.away = 0
        self.outcomes: list[dict[str, Any]] = []

    def open(self, stack: ExitStack) -> None:
        world = self.world
        hooks: dict[str, Any] = {"carried_out": self.wire.kill, "delay_s": 0.02}
        self.service = stack.enter_context(FlakyProxy(world.server.endpoint, self._to_service, **hooks))
        self.storage = stack.enter_context(FlakyProxy(world.s3.endpoint, self._to_storage, **hooks))

    def _to_service(self, method: str, target: str, nth: int) -> Fault | None:
        world, wire = self.world, self.wire
        with world.lock:
            wire.at_service += 1
            if wire.at_service == wire.run.service_dies_at and isinstance(world.server, MortalServer):
                world.server.die()
                self.away = AWAY
                self.service.hang_up()
            self.away -= 1
            away = self.away >= 0
        if wire.step():
            return Fault.CARRIED_OUT
        if away:
            return Fault.REFUSE
        return world.scenario.network.draw(method, target, nth) if world.stormy else None

    def _to_storage(self, method: str, target: str, nth: int) -> Fault | None:
        wire = self.wire
        wire.at_storage += 1
        if wire.step():
            return Fault.CARRIED_OUT
        if wire.run.expired_at and wire.at_storage >= wire.run.expired_at:
            return wire.run.expired
        altered = self.world.scenario.altered
        if altered and method == "PUT" and nth == 0 and target.partition("?")[0].endswith(f"/{altered}"):
            return Fault.ALTERED
        fault = self.world.scenario.storage.draw(method, target, nth) if self.world.stormy else None
        # A 200 to a DELETE that deletes nothing looks like any other, and S3's client reads an error for an empty list.
        blind = method == "DELETE" or "list-type=" in target
        return Fault.ERROR_503 if fault is Fault.ERROR_200 and blind else fault

    @property
    def has_run(self) -> bool:
        # A record that a kill left unfinished, in a hidden folder, is no run.
        return any((self.folder / "state/cosmos3/batches/runs").glob("[!.]*/run.json"))

    def begin(self, run: Run, options: dict[str, Any], hold_at: int = 0) -> None:
        self.wire.arm(run, hold_at)
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "NPA_COSMOS3_RAY_TOKEN": self.world.server.token}
        environ = {**os.environ, **self.world.s3.environ, "AWS_ENDPOINT_URL": self.storage.url, **own}
        self.result = self.folder / "result.json"
        self.result.unlink(missing_ok=True)
        options = {"endpoint": self.service.url, "timeout": TIMEOUT_S, "concurrency": 2, **options}
        self.was = options
        self.wire.process = start(options, environ, self.result, self.world.base, run.local)

    def end(self) -> dict[str, Any]:
        """What became of it: `manifest`, or `code`, or `crash`, or `killed`."""
        process = self.wire.process
        process.join(TIMEOUT_S + 30)
        if process.exitcode is None:
            process.kill()
            found = {"crash": "the client hangs"}
        else:
            found = json.loads(self.result.read_bytes()) if self.result.exists() else {"killed": True}
            if "killed" in found and process.exitcode != -signal.SIGKILL:
                found = {"crash": f"the client ended with {process.exitcode} and said nothing"}
        found["resumed"] = self.was.get("resume", False)
        self.outcomes.append(found)
        return found


class World:
    """A context manager over everything that one scenario needs."""

    def __init__(self, scenario: Scenario, s3: LocalS3, base: Path) -> None:
        self.scenario, self.s3, self.base = scenario, s3, base.resolve()
        self.stormy = True  # whether the weather of the scenario still rages
        self.lock = threading.Lock()
        self.problems: list[str] = []
        self.stack = ExitStack()
        self.others = [sample(f"o-{one['name']}", "text") for one in scenario.samples[:2]]

    def __enter__(self) -> World:
        self.base.mkdir(parents=True, exist_ok=True)
        scenario, padding = self.scenario, {}
        if scenario.padding:
            padding = {"output.safetensors": scenario.padding}
        kind = MortalServer if scenario.service == "ledger" else BaselineServer
        self.server = self.stack.enter_context(kind(self.base / "service", padding=padding))
        faults: Faults = self.server.faults
        faults.failing = dict.fromkeys(scenario.failing, "error")
        if isinstance(self.server, MortalServer):
            self.server.faults.interrupted_once = set(scenario.interrupted)
        self.place: Place
        if scenario.store == "s3":
            client, bucket = boto(self.s3.environ), f"audit-{scenario.seed}-{os.urandom(3).hex()}"
            client.create_bucket(Bucket=bucket)
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
            self.place, self.output = Bucket(client, bucket, "out/"), f"s3://{bucket}/out/"
        else:
            folder = self.base / "out"
            self.place, self.output = Folder(folder), str(folder)
        submitted = {scenario.request_id: list(scenario.samples), f"other-{scenario.seed}": self.others}
        self.auditor = Auditor(self.place, self.server.root, submitted)
        self.clients = [Client(name, self) for name in ("a", "b")]
        for client_ in self.clients:
            client_.open(self.stack)
        for request_id, samples in submitted.items():
            (self.base / f"{request_id}.json").write_text(json.dumps({"request_id": request_id, "samples": samples}))
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stack.close()
        shutil.rmtree(self.base, ignore_errors=True)

    # ---- the parts of a play ---------------------------------------------------------------------------------------

    def options(self, client: Client, request_id: str, *, resume: bool, allow_partial: bool) -> dict[str, Any]:
        return {
            "input_path": str(self.base / f"{request_id}.json") if not resume else "",
            "output_path": self.output,
            "resume": resume,
            "allow_partial": allow_partial,
        }

    def look(self, when: str, *, over: bool = False) -> dict[str, Any] | None:
        scenario = self.scenario
        states = self.server.states() if isinstance(self.server, MortalServer) else self._baseline_states()
        acks = [found["manifest"] for client in self.clients for found in client.outcomes if "manifest" in found]
        allowed = scenario.allow_partial or bool(scenario.rival and scenario.rival.allow_partial)
        manifest = self.auditor.look(when, states=states, acks=acks, partial_allowed=allowed, over=over)
        if isinstance(self.server, MortalServer):
            self.problems += generated_twice(self.server.generated, self.server.interruptions)
        elif (
            len(self.server.batches) > len(set(self.server.batches))
            or max(self.server.generated.values(), default=1) > 1
        ):
            self.problems.append("generated_twice")
        return manifest

    def _baseline_states(self) -> dict[str, dict[str, str]]:
        made = {name.split("/")[1] for name in self.server.generated}
        failing = set(self.scenario.failing)
        return {self.scenario.request_id: dict.fromkeys(made - failing, "succeeded")}

    def judge(self, client: Client, found: dict[str, Any], *, rivalry: bool) -> None:
        """A client may be killed, may finish, may fail; it must not crash, nor call the input wrong that is right."""
        if "crash" in found:
            self.problems.append(f"crash of {client.name}: {found['crash'][-900:]}")
        if found.get("exit_code") == 2:
            allowed = {"no_such_run"} if found["resumed"] else {"publication_exists", "unfinished_run"}
            allowed |= {"publication_exists", "no_such_run"} if rivalry else set()
            allowed |= {"publication_exists"} if self.scenario.altered == "request.json" else set()
            if found["code"] not in allowed or (not found["resumed"] and len(client.outcomes) == 1 and not rivalry):
                self.problems.append(f"exit 2 of {client.name}: {found['code']}: {found['detail']}")

    def turn(
        self, client: Client, run: Run, request_id: str, when: str, *, allow_partial: bool, hold_at: int = 0
    ) -> None:
        """One run of a client, to its end unless it is held."""
        last = client.outcomes[-1] if client.outcomes else {}
        resume = client.has_run or last.get("code") in ("publication_exists", "unfinished_run")
        resume = resume or "provenance.json" in self.place.objects()
        client.begin(run, self.options(client, request_id, resume=resume, allow_partial=allow_partial), hold_at)
        if not hold_at:
            self.finish(client, when)

    def finish(self, client: Client, when: str) -> None:
        found = client.end()
        self.judge(client, found, rivalry=self.scenario.rival is not None)
        self.look(f"{when} ({_shown(found)})")


def _shown(found: dict[str, Any]) -> str:
    if "manifest" in found:
        return f"manifest {found['manifest']['status']}"
    return str(found.get("code") or ("killed" if "killed" in found else "crash"))


def act(scenario: Scenario, s3: LocalS3, base: Path) -> list[str]:
    """Play it; returns every fault that the auditor or the runner saw. `log` of the clients is in the faults' texts."""
    with World(scenario, s3, base) as world:
        a, b = world.clients
        for number, run in enumerate(scenario.runs):
            duel = scenario.rival if number == 0 else None
            options = {"allow_partial": scenario.allow_partial}
            world.turn(a, run, scenario.request_id, f"run {number}", **options, hold_at=duel.at if duel else 0)
            if duel:
                _duel(world, a, b)
        world.stormy = False
        _epilogue(world)
        return [*world.auditor.faults, *dict.fromkeys(world.problems)]


def _duel(world: World, a: Client, b: Client) -> None:
    """B runs whole while A is held; then A goes on."""
    rival = world.scenario.rival
    assert rival is not None
    until = time.monotonic() + TIMEOUT_S
    while not a.wire.held.wait(0.02) and a.wire.process.exitcode is None and time.monotonic() < until:
        pass
    if rival.how == "same":
        options = world.options(b, world.scenario.request_id, resume=True, allow_partial=rival.allow_partial)
    else:
        options = world.options(b, f"other-{world.scenario.seed}", resume=False, allow_partial=False)
    b.begin(Run(), options)
    found = b.end()
    world.judge(b, found, rivalry=True)
    # A is held in the middle of a request, so nothing may be concluded about what it leaves; the rest is looked at.
    world.look(f"rival ({_shown(found)})")
    a.wire.go.set()
    world.finish(a, "after the rival")


def _epilogue(world: World) -> None:
    """Nothing is broken any more: resuming must end it."""
    scenario = world.scenario
    a, b = world.clients
    last: dict[str, Any] = {}
    for number in range(TRIES):
        world.turn(a, Run(), scenario.request_id, f"epilogue {number}", allow_partial=scenario.allow_partial)
        last = a.outcomes[-1]
        other = scenario.rival is not None and scenario.rival.how == "other"
        if other and last.get("code") == "publication_exists" and b.has_run:
            options = world.options(b, f"other-{scenario.seed}", resume=True, allow_partial=False)
            b.begin(Run(), options)
            world.finish(b, f"epilogue {number} of the rival")
        if "manifest" in last or _final(world, last):
            break
    manifest = world.look("end", over=True)
    made = {name.partition("/")[0] for name in world.server.generated}
    if len(made) > 1 and not any(found.get("exit_code") == 4 for client in world.clients for found in client.outcomes):
        # Nobody failed for good and gave the place back, so only one batch could ever be published here.
        world.problems.append(f"generated_for_nothing: one place, and {sorted(made)} were generated")
    if manifest is None and not _may_end_unpublished(world, last):
        world.problems.append(f"not finished after {TRIES} resumes: {last}")


def _final(world: World, last: dict[str, Any]) -> bool:
    codes = {"samples_failed"} if world.scenario.failing else set()
    if world.scenario.service == "baseline":
        codes |= {"resume_unsupported", "samples_failed"}
    if "provenance.json" in world.place.objects():
        codes |= {"publication_exists"}
    return last.get("code") in codes


def _may_end_unpublished(world: World, last: dict[str, Any]) -> bool:
    """Failed for good, without anybody who wants a partial publication; or the only answer of a service without a
    ledger was lost; or the store holds what it altered, and nothing there is overwritten."""
    scenario = world.scenario
    if scenario.altered and last.get("code") in ("output_occupied", "publication_exists"):
        return True
    if scenario.service == "baseline":
        return True
    return bool(scenario.failing) and last.get("code") == "samples_failed"


__all__ = ["LocalFaults", "World", "act"]
