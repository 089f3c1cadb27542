"""Metrics: two size histograms that are never mixed, a queue read at scrape time, bounded labels."""

from prometheus_client.parser import text_string_to_metric_families

from cosmos3_serve.service.metrics import MAX_LABEL_VALUES, GeneratorMetrics, QueueFigures


def read(metrics: GeneratorMetrics) -> dict[str, float]:
    return {
        sample.name + "".join(f"|{v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_coalesced_and_inference_sizes_are_two_histograms() -> None:
    metrics = GeneratorMetrics()
    metrics.coalesced(4)
    metrics.inference(1)
    metrics.inference(3)
    values = read(metrics)
    assert values["cosmos3_generator_coalesced_batch_size_count"] == 1
    assert values["cosmos3_generator_coalesced_batch_size_sum"] == 4
    assert values["cosmos3_generator_inference_batch_size_count"] == 2
    assert values["cosmos3_generator_inference_batch_size_bucket|2.0"] == 1


def test_every_hook_shows_up() -> None:
    metrics = GeneratorMetrics()
    for phase in ("queue", "staging", "inference", "encode", "hash", "delivery"):
        metrics.phase(phase, 0.5)
    metrics.guardrail("text", "allowed")
    metrics.sample_state("succeeded")
    metrics.bytes("out", 7)
    metrics.unauthorized()
    metrics.http_response(503)
    metrics.engine_replaced()
    metrics.ready(True)
    values = read(metrics)
    assert values["cosmos3_generator_phase_seconds_sum|encode"] == 0.5
    assert values["cosmos3_generator_guardrail_decisions_total|text|allowed"] == 1
    assert values["cosmos3_generator_samples_total|succeeded"] == 1
    assert values["cosmos3_generator_bytes_total|out"] == 7
    assert values["cosmos3_generator_http_responses_total|503"] == 1
    assert values["cosmos3_generator_ready"] == 1


def test_the_queue_is_read_when_scraped() -> None:
    metrics, now = GeneratorMetrics(), [QueueFigures(depth=2, oldest_age_s=1.0)]
    metrics.watch_queue(lambda: now[0])
    assert read(metrics)["cosmos3_generator_queue_oldest_age_seconds"] == 1.0
    now[0] = QueueFigures(depth=2, oldest_age_s=61.0, stalled=True)
    values = read(metrics)
    assert (
        values["cosmos3_generator_queue_oldest_age_seconds"] == 61.0 and values["cosmos3_generator_engine_stalled"] == 1
    )


def test_labels_cannot_grow_for_ever() -> None:
    metrics = GeneratorMetrics()
    for i in range(MAX_LABEL_VALUES + 50):
        metrics.phase(f"phase-{i}", 0.1)
    values = read(metrics)
    assert values["cosmos3_generator_phase_seconds_count|other"] == 50


def test_two_services_in_one_process_do_not_share_figures() -> None:
    one, two = GeneratorMetrics(), GeneratorMetrics()
    one.coalesced(4)
    assert read(two)["cosmos3_generator_coalesced_batch_size_count"] == 0
