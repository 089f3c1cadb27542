"""Alerts and dashboard speak of what the services really export, in Prometheus' own grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from support.exported import SCRAPED, exported, values

from cosmos3_serve.deploy.kuberay.values import SERVICES
from cosmos3_serve.deploy.render import render

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "recipes" / "monitoring"
RULE = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
BOARD = json.loads((MONITORING / "dashboard.json").read_text())
ALERTS = [rule for group in RULE["spec"]["groups"] for rule in group["rules"]]
TARGETS = [(panel["title"], target) for panel in BOARD["panels"] for target in panel.get("targets", [])]
EXPORTED, VALUES = exported(), values()


def expression(text: str) -> Any:
    """Parsed, with what Grafana fills in filled in."""
    return promql.parse(text.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$namespace", ".*"))


def selectors(node: Any) -> Iterator[Any]:
    """Every vector selector below a node."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        child = getattr(node, name, None)
        if isinstance(child, promql.Expr):
            yield from selectors(child)
    for child in getattr(node, "args", None) or ():
        yield from selectors(child)


def groupings(text: str) -> set[str]:
    return {label.strip() for found in re.findall(r"\bby\s*\(([^)]*)\)", text) for label in found.split(",")}


def check(text: str) -> None:
    """
    Raises:
        AssertionError: a series that nobody exports, a label or a value that it never has, a selector lost in parsing.
    """
    found = list(selectors(expression(text)))
    named = set(re.findall(r"\b(?:cosmos3_(?:generator|reasoner)_\w+|vllm:\w+)", text))
    assert {one.name for one in found} == named, "the walk has met every selector"
    labels = set(SCRAPED)
    for one in found:
        assert one.name in EXPORTED, f"nobody exports {one.name}"
        labels |= EXPORTED[one.name]
        for matcher in one.matchers.matchers:
            assert matcher.name in EXPORTED[one.name] | SCRAPED, f"{one.name} has no label {matcher.name}"
            fixed = VALUES.get((one.name, matcher.name))
            if fixed is not None and matcher.value != ".*":
                assert set(matcher.value.split("|")) <= fixed, f"{matcher.name} is never {matcher.value}"
    assert groupings(text) <= labels


@pytest.mark.parametrize("rule", ALERTS, ids=lambda r: r["alert"])
def test_an_alert_speaks_of_what_is_exported(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert promql.parse_duration(rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda r: r["alert"])
def test_an_alert_has_a_place_in_the_handbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    heads = re.findall(r"^### (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert rule["alert"] in heads
    assert anchor == rule["alert"].lower()


def pod_monitor() -> dict[str, Any]:
    (text,) = re.findall(r"```yaml\n(.*?)```", (MONITORING / "README.md").read_text(), re.DOTALL)
    return dict(yaml.safe_load(text))


def selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Kubernetes' own rule: every label, and every expression."""
    expressions = selector.get("matchExpressions", [])
    assert {each["operator"] for each in expressions} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def test_the_pod_monitor_of_the_page_finds_the_pods_that_answer() -> None:
    monitor = pod_monitor()["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for service in SERVICES:
        (found,) = [
            d for f in render("kuberay", service=service, parts=["deploy"]) for d in f.documents
            if d["kind"] == "RayService"
        ]  # fmt: skip
        cluster = found["spec"]["rayClusterConfig"]
        head, worker = cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]
        assert selected(monitor["selector"], worker["metadata"]["labels"])
        assert endpoint["port"] in {port["name"] for port in worker["spec"]["containers"][0]["ports"]}
        assert not selected(monitor["selector"], head["metadata"]["labels"]), "nothing of ours listens on the head"


def test_the_page_opens_the_network_to_a_prometheus_elsewhere() -> None:
    assert "--set network.client_namespace=" in (MONITORING / "README.md").read_text()
    files = render("kuberay", service="generator", sets=["network.client_namespace=monitoring"], parts=["deploy"])
    (policy,) = [d for f in files for d in f.documents if d["kind"] == "NetworkPolicy"]
    (rule,) = [each for each in policy["spec"]["ingress"] if {"port": 8000, "protocol": "TCP"} in each.get("ports", [])]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}} in rule["from"]


def test_no_alert_twice_and_none_without_words_in_the_handbook() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    heads = re.findall(r"^### (Cosmos3\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert sorted(heads) == sorted(names)


def test_the_rule_is_one_of_the_operator() -> None:
    assert (RULE["apiVersion"], RULE["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert set(RULE["spec"]) == {"groups"}
    for group in RULE["spec"]["groups"]:
        assert set(group) == {"name", "rules"}
        assert all(set(rule) <= {"alert", "expr", "for", "labels", "annotations"} for rule in group["rules"])


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[f"{title} {t['refId']}" for title, t in TARGETS])
def test_a_panel_shows_what_is_exported(title: str, target: dict[str, Any]) -> None:
    check(target["expr"])
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert shown <= groupings(target["expr"]), f"{title}: a label that the sum has lost"


def test_panels_have_places_of_their_own() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_board_asks_the_chosen_prometheus() -> None:
    assert {t["datasource"]["uid"] for _, t in TARGETS} == {"${datasource}"}
    assert {"datasource", "namespace", "job"} == {one["name"] for one in BOARD["templating"]["list"]}


def test_every_series_of_ours_is_shown_or_alerted_upon() -> None:
    said = json.dumps(BOARD) + json.dumps(RULE)
    unused = {"cosmos3_reasoner_leases", "cosmos3_generator_waves_started"}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in EXPORTED if name.startswith("cosmos3_")}
    assert {name for name in ours if name not in said} <= unused


@pytest.mark.parametrize(
    "text",
    [
        "cosmos3_generator_nothing == 1",
        'cosmos3_generator_samples_total{state="faild"}',
        'cosmos3_generator_ready{replica="x"}',
        "sum by (phase) (cosmos3_generator_ready)",
        "sum(rate(cosmos3_generator_samples_total[5m])",
        "absent(cosmos3_generator_raedy) and absent(cosmos3_reasoner_ready)",
    ],
)
def test_the_check_bites(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(text)
