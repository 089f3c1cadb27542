import math

import pytest
from support.bench_runs import made

from cosmos3_serve.bench import compare, report
from cosmos3_serve.bench.statistics import levels, percentile, ratio_interval
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
    assert "| 1 | requests/s | 0.50 | 1.00 | 2.00 (2.00 to 2.00) |" in text


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
        ({"recipe": Recipe(fps=4)}, "recipe"),
        ({"videos": [Video(name="video-00000.mp4", sha256="b" * 64, bytes=1)]}, "other videos"),
    ],
)
def test_runs_of_other_work_are_no_match(other: dict[str, object], what: str) -> None:
    with pytest.raises(Cosmos3Error, match=what) as refused:
        compare.compare(made([1.0]), made([1.0], **other))
    assert refused.value.stable_code == "runs_not_matched"


def test_other_repeats_are_no_match() -> None:
    with pytest.raises(Cosmos3Error, match="repeats"):
        compare.compare(made([1.0]), made([1.0, 1.0]))


def test_a_report_says_what_could_not_be_checked() -> None:
    run = made([2.0])
    text = "cold was cold and warm was warm is not checked"
    assert text in report.markdown(run, levels(run))
    told = run.model_copy(update={"requests": [r.model_copy(update={"cached_tokens": 0}) for r in run.requests]})
    assert text not in report.markdown(told, levels(told))
