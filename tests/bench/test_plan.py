"""The capacity model: against exact cases, against measured figures, and against runs of a double."""

import pytest
from support.bench_runs import made

from cosmos3_serve.bench.plan import Costs, against_reference, cold_share, costs_of, predict
from cosmos3_serve.bench.records import Profile
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


def test_costs_come_out_of_a_run() -> None:
    run = made([2.0])
    run.requests = [
        request.model_copy(update={"cached_tokens": 100 * request.turn, "video_tokens": 100, "prompt_tokens": 120})
        for request in run.requests
    ]
    costs = costs_of(run, workers=2)
    assert (costs.cold_s, costs.warm_s, dict(costs.itl_s)) == (1.0, 1.0, {1: 0.5})


def test_a_run_that_does_not_tell_cold_from_warm_gives_no_costs() -> None:
    with pytest.raises(Cosmos3Error, match="no cold or no warm"):
        costs_of(made([2.0]), workers=2)
