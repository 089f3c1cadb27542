"""Every series that the services export, read from the objects that export them: names, labels, label values that the
code fixes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.generator.guardrails.record import DECISIONS
from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.gateway import replica_figures
from cosmos3_serve.reasoner.gateway.metrics import Figures, ReasonerMetrics
from cosmos3_serve.reasoner.sessions.counters import ReplicaCounts
from cosmos3_serve.service.metrics import GeneratorMetrics, QueueFigures

Series = dict[str, set[str]]

# Labels that Prometheus itself puts on what it scrapes.
SCRAPED = {"namespace", "job", "instance", "pod", "container", "endpoint"}


def _used() -> tuple[CollectorRegistry, CollectorRegistry]:
    """Registries in which everything has happened once: what never happened shows neither series nor labels."""
    generator, reasoner = GeneratorMetrics(), ReasonerMetrics()
    generator.watch_queue(QueueFigures)
    generator.coalesced(1)
    generator.inference(1)
    generator.phase("queue", 1.0)
    generator.sample_state("succeeded")
    generator.guardrail("prompt.blocklist", "passed")
    generator.bytes("staged", 1)
    generator.http_response(200)
    reasoner.watch(
        lambda: Figures(
            sessions={"replica-0": {"hit": 1}}, failures={"queue_full": 1}, replicas={"replica-0": ("ready", 1)}
        )
    )
    reasoner.http_response(200)
    reasoner.media(True)
    return generator.registry, reasoner.registry


def exported() -> Series:
    """Series name -> the labels that its samples carry, without those that a scrape adds."""
    found: Series = {}
    for registry in _used():
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    for name, (kind, _) in replica_figures.FAMILIES.items():
        for ending in {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}[kind]:
            found[name + ending] = {"replica"} | ({"le"} if ending == "_bucket" else set())
    found["cosmos3_reasoner_replica_figures_age_seconds"] = {"replica"}
    return found


def values() -> dict[tuple[str, str], set[str]]:
    """(series, label) -> every value that the code can put there, where it is a fixed list."""

    def statuses(kind: type[Cosmos3Error]) -> set[str]:
        return {str(kind.status)} | {status for child in kind.__subclasses__() for status in statuses(child)}

    states, http = {state.value for state in SampleState}, statuses(Cosmos3Error) | {"200", "202"}
    outcomes = set(ReplicaCounts.__dataclass_fields__)
    return {
        ("cosmos3_generator_samples_total", "state"): states,
        ("cosmos3_generator_guardrail_decisions_total", "decision"): set(DECISIONS),
        ("cosmos3_generator_http_responses_total", "status"): http,
        ("cosmos3_reasoner_http_responses_total", "status"): http,
        ("cosmos3_reasoner_replica_state", "state"): {state.value for state in ReplicaState},
        ("cosmos3_reasoner_sessions_total", "outcome"): outcomes,
        ("cosmos3_reasoner_media_total", "held"): {"hit", "miss"},
    }
