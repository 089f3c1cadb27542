"""diff: what a running object has otherwise; what the cluster adds is no difference."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from support.manifests import DYNAMO_SET

from cosmos3_serve.deploy.diff import difference
from cosmos3_serve.deploy.render import render
from cosmos3_serve.errors import InputError

RENDERED = [d for f in render("dynamo", profile="session-affinity", sets=DYNAMO_SET) for d in f.documents]


def graph() -> dict[str, Any]:
    return copy.deepcopy(next(d for d in RENDERED if d["kind"] == "DynamoGraphDeployment"))


def running() -> dict[str, Any]:
    """As a cluster gives it back: with what its own components have written."""
    found = graph()
    found["metadata"] |= {
        "uid": "1",
        "resourceVersion": "9",
        "namespace": "somewhere",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    found["status"] = {"state": "successful"}
    found["spec"]["components"][0]["podTemplate"]["spec"]["dnsPolicy"] = "ClusterFirst"
    return found


def test_what_the_cluster_adds_is_no_difference() -> None:
    assert difference([running()], RENDERED) == []


def test_with_everything_defaults_are_shown() -> None:
    (found,) = difference([running()], RENDERED, everything=True)
    assert found.path == "spec.components.Frontend.podTemplate.spec.dnsPolicy"
    assert (found.there, found.rendered) == ("ClusterFirst", None)


def test_a_changed_value_is_named_by_its_place() -> None:
    there = running()
    there["spec"]["components"][1]["replicas"] = 4
    worker = there["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]
    next(v for v in worker["env"] if v["name"] == "NIM_PRECISION")["value"] = "bf16"
    worker["env"].append({"name": "EXTRA", "value": "1"})
    del worker["resources"]["limits"]["memory"]
    there["spec"]["components"][0]["podTemplate"]["spec"]["containers"][0]["args"][-1] = "60"
    found = {each.path: (each.there, each.rendered) for each in difference([there], RENDERED)}
    main = "spec.components.Worker.podTemplate.spec.containers.main"
    assert found == {
        "spec.components.Worker.replicas": (4, 8),
        f"{main}.env.NIM_PRECISION.value": ("bf16", "fp8"),
        f"{main}.env.EXTRA": ({"name": "EXTRA", "value": "1"}, None),
        f"{main}.resources.limits.memory": (None, "96Gi"),
        "spec.components.Frontend.podTemplate.spec.containers.main.args.5": ("60", "300"),
    }


def test_order_of_named_entries_and_spelling_of_numbers_are_no_difference() -> None:
    there = running()
    main = there["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]
    main["env"].reverse()
    main["resources"]["limits"]["nvidia.com/gpu"] = 1
    assert difference([there], RENDERED) == []


def test_objects_that_are_not_ours_are_left_alone_unless_there_is_nothing_else() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    assert difference([other, running()], RENDERED) == []
    with pytest.raises(InputError) as refused:
        difference([other], RENDERED)
    assert refused.value.stable_code == "diff_nothing_in_common" and "shared-model-cache" in refused.value.remedy


def test_the_other_profile_has_nothing_in_common_but_what_they_share() -> None:
    robin = [d for f in render("dynamo", profile="round-robin", sets=DYNAMO_SET) for d in f.documents]
    changed = {each.object for each in difference(robin, RENDERED)}
    assert changed == {"ConfigMap/cosmos3-nano-reasoner-perf-profile"}


def test_a_configuration_in_a_string_is_compared_by_what_it_says() -> None:
    rendered = [d for f in render("kuberay", service="reasoner") for d in f.documents]
    there = copy.deepcopy(next(d for d in rendered if d["kind"] == "RayService"))
    text = there["spec"]["serveConfigV2"]
    there["spec"]["serveConfigV2"] = json.dumps(yaml.safe_load(text))
    assert difference([there], rendered) == []
    there["spec"]["serveConfigV2"] = text.replace("max_replicas_per_node: 1", "max_replicas_per_node: 2")
    (found,) = difference([there], rendered)
    assert found.path.endswith("applications.cosmos3_reasoner.deployments.gateway.max_replicas_per_node")
    there["spec"]["serveConfigV2"] = "not: [yaml"
    assert difference([there], rendered)[0].there == "not: [yaml"
