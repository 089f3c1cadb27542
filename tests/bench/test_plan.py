"""The capacity model: against exact cases, against measured figures, and against runs of a double."""

import pytest
from support.bench_runs import made

from cosmos3_serve.bench.plan import Costs, against_reference, against_run, cold_share, costs_of, predict
from cosmos3_serve.bench.plan_report import Plan, from_costs, paces
from cosmos3_serve.bench.records import Profile, Run
from cosmos3_serve.errors import Cosmos3Error

# Plain vLLM 0.25 on one H200, random weights (spec: reasoner-h200, the lone cold and warm 360p question, data URLs).
H200 = Costs(cold_s=1.168, warm_s=0.0864, itl_s={1: 0.00401, 2: 0.00428})


def rate(costs: Costs, profile: Profile, concurrency: int, workers: int = 8, questions: int = 20) -> float:
    return predict(
        costs, workers=workers, questions=questions, output_tokens=128, profile=profile, concurrency=concurrency
    ).requests_per_s


def test_a_lone_worker_with_one_question_in_flight_is_arithmetic() -> None:
    costs = Costs(cold_s=1.0, warm_s=0.1, itl_s={1: 0.01})
    found = predict(costs, workers=1, questions=10, output_tokens=101, profile="session-affinity", concurrency=1)
    assert found.cold_share == pytest.approx(0.1)
    assert found.requests_per_s == pytest.approx(1 / (0.1 * 1.0 + 0.9 * 0.1 + 1.0))
    assert found.bound_by == "decode"


def test_a_busy_station_bounds_the_rate() -> None:
    costs = Costs(cold_s=0.5, warm_s=0.5, itl_s={1: 0.0001})
    found = predict(costs, workers=1, questions=2, output_tokens=10, profile="round-robin", concurrency=32)
    assert found.requests_per_s == pytest.approx(2.0, rel=0.01) and found.bound_by == "first token"
    assert found.ttft_mean_s == pytest.approx(16, rel=0.05), "32 questions wait for half a second each"


@pytest.mark.parametrize(
    ("profile", "concurrency", "measured"),
    [
        ("session-affinity", 1, 1.526),
        ("round-robin", 1, 1.009),
        ("session-affinity", 2, 2.667),
        ("round-robin", 2, 1.674),
    ],
)
def test_it_meets_what_was_measured_on_an_h200(profile: Profile, concurrency: int, measured: float) -> None:
    """One worker of eight; the figures are the measured mixes of the same page that the costs come from."""
    assert rate(H200, profile, 8 * concurrency) / 8 == pytest.approx(measured, rel=0.08)


def test_it_meets_the_seeds_table_but_for_a_crowded_round_robin() -> None:
    errors = {(row.profile, row.concurrency): row.error for row in against_reference()}
    crowded = errors.pop(("round-robin", 16))
    assert all(abs(error) < 0.10 for error in errors.values()), errors
    assert 0 < crowded < 0.25, "queues that are uneven for a moment are not in the model"


def test_more_videos_than_a_worker_holds_are_all_cold() -> None:
    small = H200.model_copy(update={"videos_held": 4})
    assert cold_share(small, workers=8, questions=20, profile="round-robin", concurrency=16) == 1.0
    assert cold_share(small, workers=8, questions=20, profile="session-affinity", concurrency=16) == 1 / 20
    assert cold_share(small, workers=8, questions=20, profile="session-affinity", concurrency=40) == 1.0
    assert rate(small, "round-robin", 16) < 0.7 * rate(H200, "round-robin", 16)


def test_round_robin_over_one_worker_is_affinity() -> None:
    assert rate(H200, "round-robin", 2, workers=1) == pytest.approx(rate(H200, "session-affinity", 2, workers=1))


def test_the_rate_grows_with_workers_and_with_load() -> None:
    rates = [rate(H200, "session-affinity", 16, workers=workers) for workers in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates)
    rates = [rate(H200, "round-robin", concurrency) for concurrency in (1, 2, 4, 8, 12, 16, 32)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("change", [{"cold_s": 0}, {"itl_s": {}}, {"itl_s": {0: 1.0}}, {"itl_s": {1: 0.0}}])
def test_costs_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Costs.model_validate({"cold_s": 1, "warm_s": 1, "itl_s": {1: 0.1}} | change)


def uneven() -> Run:
    """The cold question takes 1 s to its first token, the warm one 0.25 s, both then 0.5 s a token."""
    run = made([2.0])
    told = {"video_tokens": 100, "prompt_tokens": 120}
    cold, warm = run.requests
    start = warm.started
    run.requests = [
        cold.model_copy(update={"cached_tokens": 0, **told}),
        warm.model_copy(update={"cached_tokens": 100, "first": start + 0.25, "last": start + 1.25,
                                "ended": start + 1.25, **told}),
    ]  # fmt: skip
    return run


def test_costs_come_out_of_a_run() -> None:
    costs = costs_of(uneven(), workers=2)
    assert (costs.cold_s, costs.warm_s, dict(costs.itl_s)) == (1.0, 0.25, {1: 0.5})


def test_a_level_is_checked_by_rate_and_ttft_and_says_what_it_gave_to_the_model() -> None:
    run = uneven()
    (row,) = against_run(run, costs_of(run, workers=1), workers=1)
    assert (row.calibrated, row.ttft) == ("costs and pace", "mean")
    assert row.measured_ttft_ms == pytest.approx(625) and row.predicted_ttft_ms == pytest.approx(625)
    assert row.error == pytest.approx(0, abs=1e-9) and row.ttft_error == pytest.approx(0, abs=1e-9)
    other = Costs(cold_s=2.0, warm_s=0.5, itl_s={1: 0.5})
    (row,) = against_run(run, other, workers=1)
    assert row.ttft_error == pytest.approx(1.0)
    text = Plan(other, "x", checked=[row]).markdown()
    assert "| 1250 | 625 | +100% | costs and pace |" in text and "TTFT mean" in text


def test_the_seeds_row_that_gave_the_pace_is_marked() -> None:
    marked = {(row.profile, row.concurrency): row.calibrated for row in against_reference()}
    assert {key for key, value in marked.items() if value} == {("session-affinity", 16)}
    assert all(row.ttft == "p50" and row.ttft_error is not None for row in against_reference())


def test_no_more_questions_than_videos_are_in_flight() -> None:
    few = predict(
        H200, workers=8, questions=20, output_tokens=128, profile="session-affinity", concurrency=16, videos=4
    )
    four = predict(H200, workers=8, questions=20, output_tokens=128, profile="session-affinity", concurrency=4)
    assert few.requests_per_s == four.requests_per_s and few.concurrency == 16
    many = predict(
        H200, workers=8, questions=20, output_tokens=128, profile="session-affinity", concurrency=16, videos=99
    )
    assert many.requests_per_s == rate(H200, "session-affinity", 16)
    small = H200.model_copy(update={"videos_held": 4})
    shares = [
        cold_share(small, workers=8, questions=20, profile="round-robin", concurrency=16, videos=videos)
        for videos in (4, 5, None)
    ]
    assert shares[0] < 1.0 and shares[1:] == [1.0, 1.0]
    with pytest.raises(Cosmos3Error):
        predict(H200, workers=8, questions=1, output_tokens=1, profile="round-robin", concurrency=1, videos=0)


def test_the_pace_is_given_by_questions_in_flight() -> None:
    assert paces("4.0") == {1: 0.004} and paces("1:4.0,2:4.3") == {1: 0.004, 2: pytest.approx(0.0043)}
    for text in ("", "a", "1:4,1:5", "1.5:4", "1:", "nan", "1:4;2:5"):
        with pytest.raises(Cosmos3Error, match="--itl-ms"):
            paces(text)
    fields = {"workers": 1, "questions": 2, "output_tokens": 3, "levels": (1,), "videos_held": 9}
    with pytest.raises(Cosmos3Error, match="above 0"):
        from_costs(1, 1, "0:4.0", **fields)  # type: ignore[arg-type]


def test_a_run_that_does_not_tell_cold_from_warm_gives_no_costs() -> None:
    with pytest.raises(Cosmos3Error, match="no cold or no warm"):
        costs_of(made([2.0]), workers=2)
