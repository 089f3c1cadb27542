"""What is read of an engine's metrics."""

import pytest

from cosmos3_serve.reasoner.engine.figures import STEPS, parse_figures

RUNS = 'vllm:num_requests_running{a="b"} 3.0\n'


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (RUNS + 'vllm:num_requests_waiting{a="b"} 2.0\n', (3, 2)),
        ('vllm:num_requests_running{e="0"} 1.0\nvllm:num_requests_running{e="1"} 2.0\n', (3, 0)),
        (RUNS + 'vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0\n', (3, 0)),
        ('vllm:num_requests_running_total{a="b"} 3.0\n', None),
        (RUNS.replace("3.0", "many"), None),
        ("", None),
    ],
)
def test_load(text: str, load: tuple[int, int] | None) -> None:
    found = parse_figures(text)
    assert (found and found[:2]) == load


@pytest.mark.parametrize("name", STEPS)
def test_every_figure_of_a_step_is_progress(name: str) -> None:
    before, after = (parse_figures(RUNS + f'{name}{{e="0"}} {value}\n') for value in (1.5, 2.5))
    assert before is not None and after is not None
    assert before.progress != after.progress


def test_what_the_server_counts_by_itself_is_no_progress() -> None:
    before, after = (parse_figures(RUNS + f"vllm:mm_cache_queries_total {value}\n") for value in (1, 2))
    assert before == after
