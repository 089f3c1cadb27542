"""The engines' own figures in the gateway's /metrics. The replicas are stubs; their text is as vLLM 0.32 writes it."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.gateway import World, soon, world

from cosmos3_serve.reasoner.gateway import replica_figures
from cosmos3_serve.reasoner.gateway.replica_figures import FAMILIES, MAX_SAMPLES, read_samples

LABELS = 'engine="0",model_name="nvidia/cosmos3-nano-reasoner"'


def exposition(running: float, hits: float = 0.0) -> str:
    return f"""# HELP python_info Python platform information
# TYPE python_info gauge
python_info{{implementation="CPython",version="3.11"}} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{LABELS}}} {running}
vllm:num_requests_waiting_by_reason{{reason="capacity",{LABELS}}} 9.0
vllm:kv_cache_usage_perc{{{LABELS}}} 0.25
# TYPE vllm:mm_cache_hits_total counter
vllm:mm_cache_hits_total{{{LABELS}}} {hits}
vllm:mm_cache_hits_created{{{LABELS}}} 1.7e+09
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{{LABELS},le="0.001"}} 1.0
vllm:time_to_first_token_seconds_bucket{{{LABELS},le="+Inf"}} 2.0
vllm:time_to_first_token_seconds_count{{{LABELS}}} 2.0
vllm:time_to_first_token_seconds_sum{{{LABELS}}} 0.5
vllm:cache_config_info{{block_size="16",host="secret-node"}} 1.0
"""


async def scraped(here: World) -> dict[tuple[str, str, str], float]:
    """(sample, replica, le) -> value, as Prometheus' own parser reads the answer."""
    async with here.client() as http:
        told = await http.get("/metrics")
    assert told.status_code == 200
    families = list(text_string_to_metric_families(told.text))
    assert len({family.name for family in families}) == len(families), "a family is told twice"
    return {
        (s.name, s.labels["replica"], s.labels.get("le", "")): s.value
        for family in families
        for s in family.samples
        if s.name.startswith("vllm:") or "figures_age" in s.name
    }


async def test_every_replica_s_figures_stand_beside_the_gateway_s_own(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for number, stub in enumerate(here.replicas):
            stub.exposition = exposition(running=number + 1, hits=10 * number)
        found = await scraped(here)
        for number in range(2):
            name = f"replica-{number}"
            assert found["vllm:num_requests_running", name, ""] == number + 1
            assert found["vllm:mm_cache_hits_total", name, ""] == 10 * number
            assert found["vllm:time_to_first_token_seconds_bucket", name, "+Inf"] == 2
            assert found["vllm:time_to_first_token_seconds_sum", name, ""] == 0.5
            assert found["cosmos3_reasoner_replica_figures_age_seconds", name, ""] < 100
        assert {name for name, _, _ in found} == {
            "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:mm_cache_hits_total",
            "vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_count",
            "vllm:time_to_first_token_seconds_sum", "cosmos3_reasoner_replica_figures_age_seconds",
        }  # fmt: skip


async def test_engines_are_asked_once_in_some_seconds_however_often_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, replicas=1) as here:
        (stub,) = here.replicas
        stub.exposition = exposition(1)
        for _ in range(5):
            assert (await scraped(here))["vllm:num_requests_running", "replica-0", ""] == 1
        assert stub.scrapes == 1
        stub.exposition = exposition(3)
        monkeypatch.setattr(replica_figures, "PERIOD_S", 0.0)
        assert (await scraped(here))["vllm:num_requests_running", "replica-0", ""] == 3
        assert stub.scrapes == 2


async def test_what_left_the_fleet_is_not_shown(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for stub in here.replicas:
            stub.exposition = exposition(1)
        assert {replica for _, replica, _ in await scraped(here)} == {"replica-0", "replica-1"}
        await here.core.leave(here.places.pop("r1"))
        await soon(lambda: len(here.front.ready_members()) == 1)
        assert {replica for _, replica, _ in await scraped(here)} == {"replica-0"}
        # Another life in the same place: its own figures or none.
        await here.register(here.replicas[1])
        await here.seen()
        assert {replica for _, replica, _ in await scraped(here)} == {"replica-0"}


async def test_one_that_hangs_costs_its_time_limit_and_is_shown_as_it_was_until_that_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_figures, "PERIOD_S", 0.0)
    monkeypatch.setattr(replica_figures, "ASK_S", 1.0)
    async with world(tmp_path) as here:
        for stub in here.replicas:
            stub.exposition = exposition(1)
        await scraped(here)
        here.replicas[0].exposition = None
        here.replicas[1].exposition = exposition(2)
        await asyncio.sleep(0.2)  # what one told then is older than this
        found = await scraped(here)
        assert found["vllm:num_requests_running", "replica-0", ""] == 1
        assert found["vllm:num_requests_running", "replica-1", ""] == 2
        assert found["cosmos3_reasoner_replica_figures_age_seconds", "replica-0", ""] > 0.1
        monkeypatch.setattr(replica_figures, "STALE_S", 0.1)
        assert "replica-0" not in {replica for _, replica, _ in await scraped(here)}


def test_samples_are_bounded_and_what_is_malformed_is_left_out() -> None:
    many = "".join(f'vllm:request_success_total{{finished_reason="{n}"}} 1\n' for n in range(10 * MAX_SAMPLES))
    assert len(read_samples(many, "r")["vllm:request_success"]) == MAX_SAMPLES
    for line in (
        "vllm:num_requests_running nothing",
        'vllm:num_requests_running{a="b} 1',
        'vllm:num_requests_running{a="b"',
        'vllm:num_requests_running{a="b"} 1 2 3',
        "vllm:num_requests_running",
        "vllm:other 1",
    ):
        assert read_samples(line, "r") == {}
    assert read_samples("vllm:num_requests_running 1", "r") == {
        "vllm:num_requests_running": ['vllm:num_requests_running{replica="r"} 1']
    }
    escaped = 'vllm:prompt_tokens_total{a="b\\"}} x"} 1'
    assert read_samples(escaped, "r")["vllm:prompt_tokens"] == ['vllm:prompt_tokens_total{replica="r",a="b\\"}} x"} 1']


def test_every_family_has_a_type_and_words() -> None:
    assert {kind for kind, _ in FAMILIES.values()} == {"gauge", "counter", "histogram"}
    assert all(text.endswith(".") for _, text in FAMILIES.values())
