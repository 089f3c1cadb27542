"""Each check by records made by hand: what it finds, and that a clean run passes it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.records import Cell, Run, Sample, Service, Workload
from cosmos3_serve.bench.generator.shapes import Mix
from cosmos3_serve.bench.generator.validity import check

SOURCE = "a" * 40
SERVICE = Service(backend="hand", model="m", revision="r", source=SOURCE, weights="random", guardrails=False,
                  max_batch_size=2, max_num_seqs=2, window_s=0.05)  # fmt: skip
WORK = Workload(arrivals=(Arrivals.parse("steady:10"),), mixes=(Mix.parse("1x4"),), requests=4, fetch=True)


def sample(number: int, **changed: Any) -> Sample:
    wave = number // 2
    fields = {
        "repeat": 0, "arrivals": "steady:10", "mix": "1x4", "request": number, "name": "s0",
        "asked": {"num_frames": 1, "num_steps": 4}, "due": number / 10, "started": number / 10,
        "ended": number / 10 + 1, "state": "success", "made": {"num_frames": 1, "num_steps": 4, "resolution": "256"},
        "coalesced_id": f"c{wave}", "coalesced": 2, "inference_id": f"i{wave}", "inference": 2, "mixed_shapes": False,
        "timings": {"queue": 0.1, "inference": 0.8}, "files": [(f"{number:064d}", 7)], "fetched": True,
        "served_by": {"revision": "r", "source": SOURCE, "guardrails": False, "weights": "random"},
    }  # fmt: skip
    return Sample.model_validate(fields | changed)


def made(samples: list[Sample], counted: int | None = 4) -> Run:
    cell = Cell(repeat=0, arrivals="steady:10", mix="1x4", counted=counted)
    return Run(workload=WORK, service=SERVICE, machine={}, started_at="now", cells=[cell], samples=samples)


def clean() -> list[Sample]:
    return [sample(number) for number in range(4)]


def test_a_clean_run_has_no_finding() -> None:
    assert check(made(clean())) == []
    assert check(made(clean(), counted=None)) == [], "a server without the counter is no finding"


def swap(place: int, **changed: Any) -> Callable[[list[Sample]], list[Sample]]:
    return lambda samples: [s.model_copy(update=changed) if n == place else s for n, s in enumerate(samples)]


CASES: dict[str, tuple[Callable[[list[Sample]], list[Sample]], str]] = {
    "an error": (swap(1, error="Unreachable", state=None), "request_failed"),
    "a sample that was skipped": (swap(1, state="skip"), "sample_failed"),
    "nothing at all": (lambda samples: [], "cell_missing"),
    "a cell that nobody asked for": (swap(1, mix="9x9"), "cell_missing"),
    "a sample too few": (lambda samples: samples[:-1], "cell_incomplete"),
    "a sample twice": (lambda samples: [*samples, samples[0]], "cell_incomplete"),
    "the right count of the wrong samples": (swap(1, request=0), "cell_incomplete"),
    "other steps": (swap(1, made={"num_frames": 1, "num_steps": 3}), "shape_changed"),
    "steps that nobody tells": (swap(1, made={}), "shape_changed"),
    "no artifact": (swap(1, files=[]), "artifact_missing"),
    "an empty artifact": (swap(1, files=[("b" * 64, 0)]), "artifact_missing"),
    "other bytes": (swap(1, fetched=False), "artifact_differs"),
    "not fetched": (swap(1, fetched=None), "artifact_not_fetched"),
    "equal bytes": (swap(1, files=[(f"{0:064d}", 7)]), "outputs_equal"),
    "late": (swap(1, started=0.6), "arrivals_late"),
    "early": (swap(1, started=0.0), "clock"),
    "an end before its begin": (swap(1, ended=0.05), "clock"),
    "no wave": (swap(1, inference_id=None), "waves_partial"),
    "an empty name of a wave": (swap(1, coalesced_id=""), "waves_partial"),
    "a wave with a stranger": (swap(1, inference=3), "waves_shared"),
    "a wave that both tell wrong": (
        lambda samples: [s.model_copy(update={"inference": 3}) for s in samples],
        "waves_shared",
    ),
    "a batch over the limit": (
        lambda samples: [s.model_copy(update={"coalesced": 4, "coalesced_id": "c"}) for s in samples],
        "batch_too_large",
    ),
    "no phases": (swap(1, timings={}), "phases_partial"),
    "phases that are too long": (swap(1, timings={"queue": 0.9, "inference": 0.8}), "phases_too_long"),
    "other weights": (swap(1, served_by={"weights": "pretrained"}), "service_changed"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_check_finds_its_fault(case: str) -> None:
    change, code = CASES[case]
    assert code in [finding.code for finding in check(made(change(clean())))]


@pytest.mark.parametrize("counted", [0, 3, 5])
def test_work_of_others_is_found(counted: int) -> None:
    assert [finding.code for finding in check(made(clean(), counted=counted))] == ["foreign_work"]


def test_clients_without_a_request_are_found() -> None:
    run = made([])
    for clients, found in ((4, False), (5, True)):
        work = WORK.model_copy(update={"arrivals": (Arrivals.parse(f"closed:{clients}"),)})
        codes = [finding.code for finding in check(run.model_copy(update={"workload": work}))]
        assert ("concurrency_unreached" in codes) is found


def test_the_documentation_names_every_code() -> None:
    root = Path(__file__).parents[3]
    source = (root / "src/cosmos3_serve/bench/generator/validity.py").read_text()
    codes = set(re.findall(r"(?:Finding|_of)\(\s*\"([a-z_]+)\"", source))
    page = (root / "docs/benchmarking.md").read_text()
    assert codes == {code for _, code in CASES.values()} | {"foreign_work", "concurrency_unreached"}, (
        "each has a case that makes it"
    )
    assert not {code for code in codes if f"`{code}`" not in page}
