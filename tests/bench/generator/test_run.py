"""Whole runs against a double: a valid one has figures, every kind of invalid one has none."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.bench_generator import TOKEN, BenchGenerator
from support.bench_server import Faults, bench_server

from cosmos3_serve.bench import run_folder
from cosmos3_serve.bench.generator import plots, report
from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.records import Run, Workload
from cosmos3_serve.bench.generator.run import run
from cosmos3_serve.bench.generator.shapes import Mix
from cosmos3_serve.bench.generator.validity import check
from cosmos3_serve.errors import Cosmos3Error


@pytest.fixture(autouse=True)
def a_busy_machine_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this machine keeps time is not what these tests ask; `test_validity` asks what happens if it does not."""
    monkeypatch.setattr("cosmos3_serve.bench.generator.validity.LATE_S", 30.0)


def work(arrivals: str = "burst", mixes: str = "1x4", **changed: Any) -> Workload:
    return Workload(
        arrivals=tuple(Arrivals.parse(part) for part in arrivals.split(",")),
        mixes=tuple(Mix.parse(part) for part in mixes.split(",")),
        **{"requests": 8, **changed},
    )


async def records(server: BenchGenerator, workload: Workload) -> Run:
    with bench_server(server):
        return await run(server.url, TOKEN, workload, timeout_s=60)


async def test_a_valid_run_has_figures_and_can_be_read_back(tmp_path: Path) -> None:
    workload = work("burst,poisson:200,steady:200,closed:2", "1x4,1x4+5x2@256", repeats=2, fetch=True)
    found = await records(BenchGenerator(), workload)
    rows = report.write(found, tmp_path / "run")
    assert len(rows) == 16 and [row.samples for row in rows] == [8] * 16
    for row in rows:
        for sizes in (row.coalesced, row.inference):
            assert sizes and sum(size * count for size, count in sizes.items()) == 8 and max(sizes) <= 4
    closed = next(row for row in rows if row.arrivals == "closed:2")
    assert set(closed.inference or {}) <= {1, 2}, "two clients never make a batch of three"
    mixed = next(row for row in rows if row.mix == "1x4+5x2@256")
    assert mixed.frames_per_s == pytest.approx(3 * mixed.samples_per_s)
    assert list(rows[0].phases) == ["queue", "inference"]
    assert report.read(tmp_path / "run") == found
    page = (tmp_path / "run" / run_folder.PAGE).read_text()
    assert "weights: random" in page and "What throughput includes." in page and "the download of every" in page
    assert (tmp_path / "run" / run_folder.TABLE).read_text().count("\n") == 17
    with pytest.raises(Cosmos3Error) as refused:
        report.write(found, tmp_path / "run")
    assert refused.value.stable_code == "run_exists"


async def test_batches_are_counted_once_and_not_once_a_sample() -> None:
    found = await records(BenchGenerator(window_s=0.5), work())
    row = report.rows(found)[0]
    assert row.coalesced == {4: 2} and row.inference == {4: 2} and row.mean_coalesced == 4.0
    assert report.sizes({1: 2, 4: 3}) == "3×4 2×1"


async def test_the_figures_are_what_the_records_say() -> None:
    found = await records(BenchGenerator(), work("steady:100"))
    row = report.rows(found)[0]
    wall = max(s.ended for s in found.samples) - min(s.due for s in found.samples)
    assert row.wall_s == pytest.approx(wall) and row.wall_s > 7 / 100
    assert row.samples_per_s == pytest.approx(8 / wall)
    assert row.latency.mean_ms == pytest.approx(1000 * sum(s.ended - s.due for s in found.samples) / 8)


async def test_requests_go_out_when_they_are_due_whatever_the_service_does() -> None:
    server = BenchGenerator(batch_s=0.3)
    found = await records(server, work("steady:50"))
    at = [when for when, body in server.posts if "-warm-" not in body["request_id"]]
    assert at[-1] - at[0] < 0.29, "the last came before the first was answered"
    assert check(found) == []


async def test_every_sample_is_another_one() -> None:
    server = BenchGenerator()
    await records(server, work("burst,closed:2", repeats=2, samples=2))
    samples = [sample for _, body in server.posts for sample in body["samples"]]
    assert len({sample["seed"] for sample in samples}) == len(samples) == 1 + 2 * 2 * 8 * 2
    assert len({body["request_id"] for _, body in server.posts}) == len(server.posts)


async def test_a_server_of_the_baselines_contract_has_no_figures_of_batches(tmp_path: Path) -> None:
    found = await records(BenchGenerator(tells=False), work())
    row = report.write(found, tmp_path / "run")[0]
    assert (row.coalesced, row.inference, row.phases) == (None, None, {})
    assert found.service.weights == "unknown"
    assert "not told" in (tmp_path / "run" / run_folder.PAGE).read_text()
    assert {path.stem for path in plots.draw(found, tmp_path)} == {"throughput", "latency"}


INVALID = {
    "refuse": "request_failed",
    "error": "sample_failed",
    "shape": "shape_changed",
    "empty": "artifact_missing",
    "truncate": "artifact_differs",
    "copy": "outputs_equal",
    "silent": "waves_partial",
    "share": "waves_shared",
    "foreign": "foreign_work",
    "untimed": "phases_partial",
    "long": "phases_too_long",
    "change": "service_changed",
}


@pytest.mark.parametrize("fault", INVALID)
async def test_a_server_that_misbehaves_leaves_no_figure(tmp_path: Path, fault: str) -> None:
    found = await records(BenchGenerator(faults=Faults(fault, every=3)), work(fetch=True))
    with pytest.raises(Cosmos3Error) as refused:
        report.write(found, tmp_path)
    assert (refused.value.stable_code, refused.value.exit_code) == ("run_invalid", 3)
    assert INVALID[fault] in [error.field for error in refused.value.errors]
    assert not (tmp_path / run_folder.TABLE).exists() and not (tmp_path / run_folder.PAGE).exists()
    head = json.loads((tmp_path / run_folder.RUN).read_text())
    assert head["valid"] is False and "rows" not in head and "samples_per_s" not in json.dumps(head)
    assert len((tmp_path / report.RECORDS).read_text().splitlines()) == 8, "the records are kept"
    with pytest.raises(Cosmos3Error):
        report.read(tmp_path)


async def test_a_service_that_is_not_ready_is_not_measured() -> None:
    server = BenchGenerator(ready=False)
    with pytest.raises(Cosmos3Error) as refused:
        await records(server, work())
    assert refused.value.exit_code == 3 and server.posts == []


async def test_more_clients_than_requests_are_refused_before_the_first() -> None:
    server = BenchGenerator()
    with pytest.raises(Cosmos3Error, match="closed:9") as refused:
        await records(server, work("burst,closed:9"))
    assert (refused.value.stable_code, refused.value.exit_code) == ("concurrency_unreached", 2) and server.posts == []


async def test_a_shape_that_is_refused_ends_it_before_the_first_cell() -> None:
    server = BenchGenerator(faults=Faults("refuse", every=1))
    with pytest.raises(Cosmos3Error):
        await records(server, work())
    assert len(server.posts) == 1


async def test_each_plot_has_bars_and_the_page_needs_nothing_beside_itself(tmp_path: Path) -> None:
    found = await records(BenchGenerator(), work("burst,closed:2", repeats=2))
    found.service = found.service.model_copy(update={"model": "<script>x</script>"})
    drawn = plots.draw(found, tmp_path)
    assert {path.stem for path in drawn} == {"throughput", "latency", "batches", "phases"}
    for path in drawn:
        colours = Image.open(path).convert("RGB").getcolors(1 << 20) or []
        assert sum(count for count, (r, g, b) in colours if max(r, g, b) - min(r, g, b) > 60) > 1000, path.stem
    text = plots.page(found, drawn, tmp_path).read_text()
    assert "<script>" not in text and text.count("src='data:image/png;base64,") == 4
    assert not re.search(r"(href|src)='(?!data:)", text) and "weights: random" in text
