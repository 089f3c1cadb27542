"""A queue from input to index, against a real service over HTTP: nothing twice, nothing lost, whoever works on it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.ledger_server import LedgerServer
from support.queues import Heard, Site, audit, text_samples, until
from support.s3 import LocalS3, boto

from cosmos3_serve.errors import Conflict, Cosmos3Error, Cosmos3RayServeError, Incomplete, NotFound
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.records import Control, Wanted
from cosmos3_serve.queue.run import QueueOrder, run_queue, run_queue_async
from cosmos3_serve.queue.state import status, want


def test_samples_by_line_become_parts_and_an_index(site: Site) -> None:
    site.limit(40)
    heard = Heard()
    found = run_queue(site.order(site.lines(100)), heard)
    index = audit(site.out)
    assert found == index
    assert [part["samples"] for part in index["parts"]] == [40, 40, 20]
    assert (index["status"], index["samples"], index["succeeded"]) == ("completed", 100, 100)
    assert set(site.server.generated.values()) == {1}
    assert len(site.server.generated) == 100
    assert heard.seen[0].samples == 100
    left = [path for path in (site.out / ".cosmos3-queue").rglob("*") if path.is_file()]
    assert {path.parent.name for path in left} == {".cosmos3-queue", "results"}, "batches and leases are removed"
    assert status(str(site.out))["parts"]["completed"] == 3


def test_a_folder_of_batches(site: Site) -> None:
    folder = site.tmp / "batches" / "deep"
    folder.mkdir(parents=True)
    (folder / "b.json").write_text(json.dumps({"samples": text_samples(3), "request_id": "mine"}))
    (folder.parent / "a.json").write_text(json.dumps(text_samples(2)))
    (folder.parent / "notes.txt").write_text("no batch")
    index = run_queue(site.order(folder.parent))
    assert [(part["name"], part["samples"]) for part in index["parts"]] == [("00001-a", 2), ("00002-b", 3)]
    assert "mine" in site.server.batches, "a batch keeps its own id"
    assert set(site.server.generated.values()) == {1}
    assert len(site.server.generated) == 5


def test_the_same_command_again_finds_it_done(site: Site) -> None:
    path = site.lines(5)
    first = run_queue(site.order(path))
    posted = list(site.server.log)
    assert run_queue(site.order(path)) == first
    assert run_queue(site.order("")) == first
    assert [line for line in site.server.log[len(posted) :] if line[0] == "POST"] == []


def test_another_input_is_refused_and_the_first_queue_stays(site: Site) -> None:
    first = run_queue(site.order(site.lines(5)))
    with pytest.raises(Conflict) as refused:
        run_queue(site.order(site.lines(6)))
    assert refused.value.stable_code == "queue_differs"
    assert audit(site.out) == first


def test_no_queue_to_continue(site: Site) -> None:
    with pytest.raises(NotFound) as refused:
        run_queue(site.order(""))
    assert refused.value.stable_code == "no_such_queue"


def test_a_dry_run_writes_nothing(site: Site) -> None:
    site.limit(4)
    plan = run_queue(site.order(site.lines(10), dry_run=True))
    assert [part["samples"] for part in plan["parts"]] == [4, 4, 2]
    assert not site.out.exists()
    assert [line for line in site.server.log if line[0] == "POST"] == []


def test_only_failed_samples_run_again(site: Site) -> None:
    site.limit(5)
    site.server.faults.interrupted_once = {"s00001", "s00007"}
    index = run_queue(site.order(site.lines(10)))
    audit(site.out)
    assert index["status"] == "completed"
    again = {key.split("/")[1] for key, count in site.server.generated.items() if count == 2}
    assert again == {"s00001", "s00007"}


def test_what_fails_for_good_is_named_and_the_others_are_published(site: Site) -> None:
    site.limit(5)
    site.server.faults.failing = {"s00003": "error", **{f"s{i:05}": "error" for i in range(5, 10)}}
    path = site.lines(12)
    with pytest.raises(Cosmos3RayServeError) as failed:
        run_queue(site.order(path))
    assert failed.value.stable_code == "samples_failed"
    assert failed.value.errors[0].field == "00001/s00003"
    index = audit(site.out)
    assert (index["status"], index["succeeded"], index["failed"]) == ("partial", 6, 6)
    assert [part["status"] for part in index["parts"]] == ["partial", "failed", "completed"]
    assert index["parts"][0]["failed"][0]["code"] == "guardrail_blocked"
    assert [sample["name"] for sample in index["parts"][1]["failed"]] == [f"s{i:05}" for i in range(5, 10)]
    assert run_queue(site.order(path, allow_partial=True)) == index


def test_bad_input_names_file_and_line_and_nothing_is_sent(site: Site) -> None:
    path = site.tmp / "bad.jsonl"
    rows = [json.dumps(sample) for sample in text_samples(6)]
    rows[2], rows[4] = '{"name": "s", "num_frmes": 5}', rows[0]
    path.write_text("\n".join([*rows, "{no json"]))
    with pytest.raises(Cosmos3Error) as refused:
        run_queue(site.order(path))
    assert refused.value.exit_code == 2
    fields = {error.field for error in refused.value.errors}
    assert {"bad.jsonl:5", "bad.jsonl:7"} <= fields
    assert any(name.startswith("bad.jsonl:3: ") for name in fields), fields
    assert [line for line in site.server.log if line[0] == "POST"] == []
    assert not (site.out / ".cosmos3-queue").exists() or not any((site.out / ".cosmos3-queue").rglob("*.json"))


async def two(*orders: QueueOrder) -> list[Any]:
    return await asyncio.gather(*(run_queue_async(order, Heard()) for order in orders), return_exceptions=True)


async def test_two_workers_share_a_queue_over_s3(s3: LocalS3, site: Site) -> None:
    s3.create_bucket("queue-two")
    site.limit(15)
    lines = site.lines(300).read_bytes()
    boto(s3.environ).put_object(Bucket="queue-two", Key="in/samples.jsonl", Body=lines)
    order = site.order("s3://queue-two/in/samples.jsonl", output_path="s3://queue-two/out/")
    machines = [
        QueueOrder(
            input_path=order.input_path,
            output_path=order.output_path,
            endpoints=order.endpoints,
            work=type(order.work)(journal_dir=site.tmp / f"machine-{i}"),
        )
        for i in range(2)
    ]
    first, second = await two(*machines)
    assert first == second
    assert (first["status"], len(first["parts"]), first["succeeded"]) == ("completed", 20, 300)
    assert set(site.server.generated.values()) == {1}, "a sample was generated twice"
    assert len(site.server.generated) == 300
    assert len(site.server.batches) == 20


async def test_a_dead_service_and_a_living_one(site: Site, tmp_path: Path) -> None:
    """Parts of the dead one go to the other; nothing of it counts against them."""
    site.limit(3)
    with LedgerServer(tmp_path / "gone") as gone:
        dead = gone.endpoint
    found = await run_queue_async(site.order(site.lines(12), endpoints=[dead, site.server.endpoint]), Heard())
    assert found["status"] == "completed"
    assert len(site.server.generated) == 12


async def test_pause_resume_and_cancel(site: Site) -> None:
    site.limit(2)
    site.server.step_s = 0.02
    place = QueuePlace.at(str(site.out))
    order = site.order(site.lines(24), parallel=1)
    worker = asyncio.create_task(run_queue_async(order, heard := Heard()))
    await until(place.plan)
    await until(place.ended)
    await place.set_control(Control(wanted=Wanted.PAUSED))
    await until(lambda: "the queue is paused" in heard.notices)
    await until(lambda: not heard.seen[-1].parts_running)
    before = len(site.server.batches)
    await asyncio.sleep(1.5)
    assert len(site.server.batches) == before < 12, "nothing begins while it is paused"
    found = await asyncio.to_thread(status, str(site.out))
    assert (found["state"], found["parts"]["running"]) == ("paused", 0)
    await asyncio.to_thread(want, str(site.out), Wanted.RUNNING)
    await until(lambda: len(site.server.batches) > before)
    await place.set_control(Control(wanted=Wanted.CANCELLED))
    with pytest.raises(Incomplete) as ended:
        await worker
    assert (ended.value.stable_code, ended.value.exit_code) == ("queue_cancelled", 5)
    await asyncio.to_thread(want, str(site.out), Wanted.RUNNING)
    index = await run_queue_async(site.order(""), Heard())
    audit(site.out)
    assert (index["status"], index["succeeded"]) == ("completed", 24)
