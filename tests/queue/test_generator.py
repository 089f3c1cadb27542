"""Parts as batches of a generator: limits, results from manifests, and what moves when a service is lost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.ledger_server import LedgerServer
from support.queues import Site, text_samples

from cosmos3_serve.client.claims import Claims
from cosmos3_serve.client.journal import Journal, Run
from cosmos3_serve.client.journals import Journals
from cosmos3_serve.errors import Cosmos3RayServeError, FieldError, Incomplete
from cosmos3_serve.queue.generator import GeneratorOptions, GeneratorRunner, part_result
from cosmos3_serve.queue.records import PartStatus, PlannedPart
from cosmos3_serve.queue.work import Task
from cosmos3_serve.storage.location import open_store

PART = PlannedPart(name="00001", request_id="q-00001", samples=3, bytes=1, sha256="0" * 64)


def runner(tmp_path: Path) -> GeneratorRunner:
    return GeneratorRunner(GeneratorOptions(journal_dir=tmp_path / "runs"))


def task(site: Site, endpoint: str, *, known: bool = True) -> Task:
    path = site.tmp / "part.json"
    path.write_text(
        json.dumps({"samples": text_samples(3), "model": "Cosmos3-Nano", "request_id": "q-00001"}, indent=2)
    )
    return Task(PART, str(path), f"{site.out}/", endpoint, known=known, partial=False)


def kept_run(site: Site, work: Task, endpoint: str) -> Journal:
    """A run whose service answered, and whose artifacts were not fetched yet."""
    journals = Journals(site.tmp / "runs")
    journals.prepare()
    run = Run(
        run_id="",
        request_id=PART.request_id,
        endpoint=endpoint,
        input_path=work.input_path,
        output_path=work.output_path,
        expected_revision=site.server.revision,
        ledger=True,
        created_at=time.time(),
    )
    journal = journals.create(run, Path(work.input_path).read_bytes())
    journal.keep_response(b'{"artifacts": "of the lost service"}')
    return journal


async def test_a_response_of_a_lost_service_is_forgotten_and_the_part_made_elsewhere(site: Site) -> None:
    work = task(site, site.server.endpoint)
    kept_run(site, work, "http://127.0.0.1:9")
    result = await runner(site.tmp).run(work, lambda done: None)
    assert (result.status, result.succeeded) == (PartStatus.COMPLETED, 3)
    assert site.server.batches == [PART.request_id], "the same body under the same id"


async def test_an_outcome_that_is_being_published_binds_its_part_to_its_service(site: Site) -> None:
    work = task(site, site.server.endpoint)
    journal = kept_run(site, work, "http://127.0.0.1:9")
    claims = Claims(open_store(work.output_path), Path(work.input_path).read_bytes(), PART.request_id)
    await claims.claim()
    await claims.begin("an outcome")
    with pytest.raises(Incomplete) as waits:
        await runner(site.tmp).run(work, lambda done: None)
    assert waits.value.stable_code == "part_bound"
    assert (journal.directory / "response.json").exists()
    assert site.server.batches == []


@pytest.mark.parametrize(
    ("announced", "samples", "size"),
    [
        ({}, 1024, 8 << 20),
        ({"limits": {"samples": 64, "body_bytes": 100_000}}, 64, 100_000),
        ({"limits": {"samples": 5000, "body_bytes": 64 << 20}}, 1024, 8 << 20),
        ({"limits": {"samples": "many"}}, 1024, 8 << 20),
        ({"limits": {"samples": 0, "body_bytes": -1}}, 1, 4096),
    ],
)
async def test_announced_limits(site: Site, announced: dict[str, Any], samples: int, size: int) -> None:
    site.server.faults.announced = announced
    found = await runner(site.tmp).limits([site.server.endpoint])
    assert (found.max_samples, found.max_body_bytes) == (samples, size)


async def test_the_smallest_of_several_services_counts_and_a_dead_one_does_not(site: Site, tmp_path: Path) -> None:
    site.server.faults.announced = {"limits": {"samples": 64, "body_bytes": 1 << 20}}
    with LedgerServer(tmp_path / "other") as other:
        other.faults.announced = {"limits": {"samples": 512, "body_bytes": 100_000}}
        endpoints = [site.server.endpoint, other.endpoint, "http://127.0.0.1:9"]
        found = await runner(site.tmp).limits(endpoints)
    assert (found.max_samples, found.max_body_bytes) == (64, 100_000)


async def test_a_part_without_any_result_names_every_sample(site: Site) -> None:
    error = Cosmos3RayServeError(
        "nothing",
        code="samples_failed",
        errors=[FieldError("samples[1]", "s00001: guardrail_blocked: said no: really")],
    )
    result = await runner(site.tmp).give_up(task(site, "http://x"), error)
    assert (result.status, result.succeeded, result.manifest_sha256) == (PartStatus.FAILED, 0, None)
    assert [(sample.name, sample.code, sample.message) for sample in result.failed] == [
        ("s00000", "samples_failed", ""),
        ("s00001", "guardrail_blocked", "said no: really"),
        ("s00002", "samples_failed", ""),
    ]


def test_what_a_manifest_says() -> None:
    manifest = {"missing": ["b"], "samples": [{"name": "b", "code": "out_of_memory", "message": "no"}]}
    found = part_result(PART, manifest)
    assert (found.status, found.succeeded) == (PartStatus.PARTIAL, 2)
    assert [(sample.name, sample.code) for sample in found.failed] == [("b", "out_of_memory")]
    assert part_result(PART, {}).status is PartStatus.COMPLETED


async def test_cancel_asks_the_service(site: Site) -> None:
    work = task(site, site.server.endpoint)
    site.server.submit(PART.request_id, {"samples": text_samples(3)}, text_samples(3))
    await runner(site.tmp).cancel(work)
    assert ("DELETE", f"/v1/batches/{PART.request_id}", "") in site.server.log
