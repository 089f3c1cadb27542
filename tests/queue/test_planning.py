"""The plan: made once, from input that is completely checked, and the same for everybody who joins."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.queues import text_samples

from cosmos3_serve.errors import Conflict, InputError, LimitExceeded
from cosmos3_serve.queue import planning
from cosmos3_serve.queue.place import QueuePlace, batch_name
from cosmos3_serve.queue.records import Limits, Plan


@pytest.fixture
def place(tmp_path: Path) -> QueuePlace:
    return QueuePlace.at(str(tmp_path / "out"))


def write(tmp_path: Path, samples: list[Any], name: str = "in.jsonl") -> str:
    path = tmp_path / name
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return str(path)


async def test_every_part_is_stored_with_the_bytes_that_the_plan_names(place: QueuePlace, tmp_path: Path) -> None:
    path = write(tmp_path, text_samples(25))
    plan = await planning.make(place, path, Limits(max_samples=10))
    assert [(part.name, part.samples) for part in plan.parts] == [("00001", 10), ("00002", 10), ("00003", 5)]
    found = []
    for part in plan.parts:
        data = await place.read(batch_name(plan.queue_id, part.name))
        assert data is not None
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part.bytes, part.sha256)
        body = json.loads(data)
        assert body["request_id"] == part.request_id
        found += body["samples"]
    assert found == text_samples(25)
    assert await place.plan() == plan == await planning.join(place, path)


async def test_the_split_is_the_same_again(tmp_path: Path) -> None:
    path = write(tmp_path, [sample | {"prompt": "x" * (i % 7 * 100)} for i, sample in enumerate(text_samples(60))])
    limits = Limits(max_samples=9, max_body_bytes=6000)

    def shape(plan: Plan) -> list[tuple[str, int]]:
        return [(part.name, part.samples) for part in plan.parts]

    first, second = [await planning.make(None, path, limits) for _ in range(2)]
    assert shape(first) == shape(second)
    assert first.source_sha256 == second.source_sha256
    assert all(part.bytes <= 6000 for part in first.parts)


async def test_of_planners_that_start_together_one_plan_stays(place: QueuePlace, tmp_path: Path) -> None:
    path = write(tmp_path, text_samples(12))
    plans = await asyncio.gather(*(planning.make(place, path, Limits(max_samples=5)) for _ in range(4)))
    assert len({plan.queue_id for plan in plans}) == 1
    folders = {item.parent.name for item in (tmp_path / "out/.cosmos3-queue/batches").rglob("*.json")}
    assert folders == {plans[0].queue_id}, "the batches of the others are removed"


async def test_a_planner_of_another_input_is_refused(place: QueuePlace, tmp_path: Path) -> None:
    await planning.make(place, write(tmp_path, text_samples(3)), Limits())
    other = write(tmp_path, text_samples(4), "other.jsonl")
    for attempt in (planning.join(place, other), planning.make(place, other, Limits())):
        with pytest.raises(Conflict) as refused:
            await attempt
        assert refused.value.stable_code == "queue_differs"


async def test_a_place_with_a_single_batch_is_refused(place: QueuePlace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/provenance.json").write_text("{}")
    with pytest.raises(Conflict) as refused:
        await planning.make(place, write(tmp_path, text_samples(3)), Limits())
    assert refused.value.stable_code == "publication_exists"


async def test_findings_of_all_parts_are_listed_by_line(place: QueuePlace, tmp_path: Path) -> None:
    samples = text_samples(30)
    samples[4]["num_steps"] = -1
    samples[17]["vision_path"] = "/etc/passwd"
    samples[29]["name"] = "no/name"
    with pytest.raises(InputError) as refused:
        await planning.make(place, write(tmp_path, samples), Limits(max_samples=10))
    lines = {error.field.split(": ")[0] for error in refused.value.errors}
    assert lines == {"in.jsonl:5", "in.jsonl:18", "in.jsonl:30"}
    assert refused.value.exit_code == 2
    assert not list((tmp_path / "out").rglob("*.json"))


async def test_ids_of_batches_are_kept_and_unique(place: QueuePlace, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"samples": text_samples(2), "request_id": "mine"}))
    (folder / "b.json").write_text(json.dumps({"samples": text_samples(5), "request_id": "long"}))
    plan = await planning.make(None, str(folder), Limits(max_samples=2))
    assert [part.request_id for part in plan.parts] == ["mine", "long-1", "long-2", "long-3"]
    (folder / "c.json").write_text(json.dumps({"samples": text_samples(1), "request_id": "mine"}))
    with pytest.raises(InputError, match=r"c\.json: request_id"):
        await planning.make(None, str(folder), Limits())


async def test_an_empty_file_of_samples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        await planning.make(None, write(tmp_path, []), Limits())


async def test_a_killed_planner_leaves_nothing_in_the_way(place: QueuePlace, tmp_path: Path) -> None:
    (tmp_path / "out/.cosmos3-queue/batches/dead").mkdir(parents=True)
    (tmp_path / "out/.cosmos3-queue/batches/dead/00001.json").write_text("{}")
    plan = await planning.make(place, write(tmp_path, text_samples(3)), Limits())
    assert await place.plan() == plan


async def test_a_sample_above_the_body_limit(tmp_path: Path) -> None:
    path = write(tmp_path, [*text_samples(1), {"name": "big", "prompt": "x" * 5000}])
    with pytest.raises(LimitExceeded, match=r"in\.jsonl:2"):
        await planning.make(None, path, Limits(max_body_bytes=5000))
