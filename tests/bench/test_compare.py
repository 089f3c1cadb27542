import csv
import json
import math
from pathlib import Path

import pytest
from support.bench_runs import made

from cosmos3_serve.bench import compare, report
from cosmos3_serve.bench.records import Run
from cosmos3_serve.bench.statistics import levels, percentile, ratio_interval, t95
from cosmos3_serve.bench.videos import Recipe, Video
from cosmos3_serve.errors import Cosmos3Error


def test_rows_are_what_the_records_say() -> None:
    row = levels(made([2.0]))[0]
    assert row.requests_per_s == pytest.approx(0.5) and row.output_tokens_per_s == pytest.approx(1.5)
    assert row.ttft.p50_ms == pytest.approx(1000) and row.latency.mean_ms == pytest.approx(2000)
    assert row.itl is not None and row.itl.p50_ms == pytest.approx(500)
    assert row.ttft_by_turn_ms == pytest.approx([1000, 1000])


def test_percentiles_are_linear() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], share) for share in (0, 50, 100)] == [1.0, 2.5, 4.0]


def test_the_interval_is_students_t_over_the_logarithms() -> None:
    found = ratio_interval([(1.0, 2.0), (1.0, 2.0), (1.0, 2.0)])
    assert found is not None and found == pytest.approx((2.0, 2.0, 2.0))
    mean, low, high = ratio_interval([(1.0, 1.0), (1.0, math.e**2)]) or (0, 0, 0)
    assert mean == pytest.approx(math.e)
    assert math.log(high) - 1 == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2))
    assert math.log(low) == pytest.approx(1 - 12.706)
    assert ratio_interval([(1.0, 2.0)]) is None


def test_a_gain_is_b_over_a() -> None:
    gains = compare.compare(made([2.0, 2.0]), made([1.0, 1.0]))
    by_name = {gain.figure: gain for gain in gains}
    assert by_name["requests/s"].ratio == pytest.approx(2.0) and by_name["TTFT p50 ms"].ratio == pytest.approx(0.5)
    text = compare.markdown(made([2.0, 2.0]), made([1.0, 1.0]), gains)
    assert "| 1* | requests/s | 0.50 | 1.00 | 2.00 (2.00 to 2.00) |" in text
    assert "two separate runs" in text and "paired" not in text


def test_rows_that_began_warm_are_marked_and_others_are_not() -> None:
    gains = compare.compare(made([2.0, 2.0]), made([1.0, 1.0]))
    assert all(gain.warm_start for gain in gains), "the second repeat used the videos of the first"
    assert "Rows marked *" in compare.markdown(made([2.0, 2.0]), made([1.0, 1.0]), gains)
    runs = [fresh([2.0, 2.0]), fresh([1.0, 1.0])]
    gains = compare.compare(*runs)
    assert not any(gain.warm_start for gain in gains) and "*" not in compare.markdown(*runs, gains)
    assert not any(gain.warm_start for gain in compare.compare(made([2.0]), made([1.0])))


def fresh(pace: list[float], first: str = "a") -> Run:
    run = made(pace)
    videos = [Video(name=f"video-{n:05d}.mp4", sha256=f"{first}{n}" * 32, bytes=1) for n in range(len(pace))]
    requests = [r.model_copy(update={"video": videos[r.repeat].name}) for r in run.requests]
    work = run.workload.model_copy(update={"fresh": True})
    return run.model_copy(update={"videos": videos, "requests": requests, "workload": work})


def test_other_videos_of_the_same_recipe_are_said() -> None:
    a, b, other = fresh([2.0, 2.0]), fresh([1.0, 1.0]), fresh([1.0, 1.0], "c")
    assert "other videos" not in compare.markdown(a, b, compare.compare(a, b))
    assert "other videos" in compare.markdown(a, other, compare.compare(a, other))
    assert compare.as_dict(a, other, [])["same_videos"] is False


def test_what_was_not_checked_is_said_beside_the_ratios(tmp_path: Path) -> None:
    requests = [r.model_copy(update={"video_tokens": 100}) for r in made([1.0]).requests]
    untold = made([2.0], requests=requests, fleet=[1])
    told = made([2.0], requests=[r.model_copy(update={"cached_tokens": 0}) for r in requests], fleet=[1])
    notes = compare.notes(untold, told)
    assert [note.partition(":")[0] for note in notes if "not checked" in note] == ["A"]
    report.write(untold, tmp_path / "untold")
    report.write(told, tmp_path / "told")
    heads = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("untold", "told")]
    assert [head["temperature_checked"] for head in heads] == [False, True]
    assert report.read(tmp_path / "told") == told


def test_a_comparison_is_written_as_data_too(tmp_path: Path) -> None:
    a, b = made([2.0, 2.2]), made([1.0, 1.0])
    gains = compare.compare(a, b)
    compare.write(a, b, gains, tmp_path / "both")
    body = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert body["gains"][0]["ratio"] == gains[0].ratio and body["a"]["weights"] == "random" and body["notes"]
    rows = list(csv.DictReader((tmp_path / "both" / "comparison.csv").open()))
    assert [(row["figure"], float(row["low"])) for row in rows] == [
        (gain.figure, pytest.approx(gain.low, rel=1e-5)) for gain in gains
    ]
    (tmp_path / "file").touch()
    with pytest.raises(Cosmos3Error, match="cannot write"):
        compare.write(a, b, gains, tmp_path / "file")


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (15, 2.131), (16, 2.120), (30, 2.042), (99, 1.984)])
def test_the_quantile_is_students_beyond_the_table_too(degrees: int, quantile: float) -> None:
    assert t95(degrees) == pytest.approx(quantile, abs=0.0006)


def test_one_repeat_claims_no_interval() -> None:
    gains = compare.compare(made([2.0]), made([1.0]))
    assert gains[0].low is None
    assert "no interval can be given" in compare.markdown(made([2.0]), made([1.0]), gains)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"model": "x"}, "model"),
        ({"weights": "pretrained"}, "weights"),
        ({"load": "aiperf"}, "load"),
        ({"fleet": [4]}, "a fleet of 2 replicas against 4"),
        ({"recipe": Recipe(fps=4)}, "recipe"),
        ({"videos": [Video(name="video-00000.mp4", sha256="b" * 64, bytes=1)]}, "other videos"),
    ],
)
def test_runs_of_other_work_are_no_match(other: dict[str, object], what: str) -> None:
    with pytest.raises(Cosmos3Error, match=what) as refused:
        compare.compare(made([1.0], fleet=[2]), made([1.0], **{"fleet": [2]} | other))
    assert refused.value.stable_code == "runs_not_matched"


def spread(replicas: int, sessions: int) -> Run:
    """A run that nobody told the size of its fleet, with so many sessions on so many replicas."""
    requests = [r.model_copy(update={"video": f"v{n}", "replica": f"r{n % replicas}"})
                for n in range(sessions) for r in made([1.0]).requests]  # fmt: skip
    return made([1.0], requests=requests)


def test_fleets_are_sized_by_who_answered_if_enough_sessions_were_asked() -> None:
    assert [compare.fleet(spread(2, sessions)) for sessions in (2, 23, 24)] == [None, None, 2]
    assert compare.fleet(made([1.0], fleet=[3, 3])) == 3 and compare.fleet(made([1.0])) is None
    with pytest.raises(Cosmos3Error, match="a fleet of 2 replicas against 3"):
        compare.compare(spread(2, 60), spread(3, 60))
    one, other = spread(2, 2), made([1.0], fleet=[3], requests=spread(2, 2).requests)
    text = compare.markdown(one, other, compare.compare(one, other))
    assert "A: the server does not say how many replicas" in text and "B: the server does not say" not in text
    assert "3 replica(s)" in text and compare.as_dict(one, other, [])["b"]["replicas"] == 3  # type: ignore[index]


def test_other_repeats_are_no_match() -> None:
    with pytest.raises(Cosmos3Error, match="repeats"):
        compare.compare(made([1.0]), made([1.0, 1.0]))


def test_a_report_says_what_could_not_be_checked() -> None:
    run = made([2.0])
    text = "cold was cold and warm was warm is not checked"
    assert text in report.markdown(run, levels(run))
    told = run.model_copy(update={"requests": [r.model_copy(update={"cached_tokens": 0}) for r in run.requests]})
    assert text not in report.markdown(told, levels(told))
