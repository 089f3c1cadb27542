"""--check: schemas, placeholders, credentials, contradictions; and that it never passes silently."""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.manifests import DYNAMO_SET, GENERATOR_SET, KUBERAY_SET, everything

from cosmos3_serve.deploy import check as checking
from cosmos3_serve.deploy.check import CUSTOM, check, pod_templates, require_sound, schema
from cosmos3_serve.deploy.render import render
from cosmos3_serve.errors import Refusal, StartRefused, UsageError

# A folder with the operators' own CRDs (nvidia.com_dynamographdeployments.yaml, ray.io_rayservices.yaml): they are not
# ours to carry. Where it is named, everything that is rendered is checked against them, too.
KUBERAY = json.loads((Path(__file__).parent / "schemas" / "rayservice-v1.json").read_text(encoding="utf-8"))
CRDS = os.environ.get("COSMOS3_CRD_DIR", "")  # more of the operators' own definitions


@functools.cache
def rendered_once() -> list[dict[str, Any]]:
    return [d for f in everything() for d in f.documents]


def documents() -> list[dict[str, Any]]:
    """The caller's own: it may break them."""
    return copy.deepcopy(rendered_once())


def of(kind: str, suffix: str = "") -> dict[str, Any]:
    found = [d for d in rendered_once() if d["kind"] == kind and d["metadata"]["name"].endswith(suffix)]
    return copy.deepcopy(found[0])


@pytest.mark.parametrize("version", ["1.28", "1.32", "1.37"])
def test_what_is_rendered_is_sound(version: str) -> None:
    assert require_sound(documents(), kubernetes=version) == len(documents()), "or else it raises with each finding"


def test_every_placeholder_is_found() -> None:
    files = render("dynamo", profile="round-robin")
    found = check([d for f in files for d in f.documents])
    assert {each.code for each in found} == {"placeholder"}
    assert {each.field.split()[-1] for each in found} == {
        "spec.storageClassName",
        "spec.template.spec.containers.0.image",
        "spec.components.0.podTemplate.spec.containers.0.image",
        "spec.components.1.podTemplate.spec.containers.0.image",
    }


def broken(kind: str, change: Any, suffix: str = "") -> list[tuple[str, str]]:
    document = of(kind, suffix)
    change(document)
    return [(each.code, each.field) for each in check([document])]


def worker(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["components"][1]
    return found


def container(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = worker(document)["podTemplate"]["spec"]["containers"][0]
    return found


GRAPH = "DynamoGraphDeployment/cosmos3-nano-reasoner-agg-h200-round-robin"
POD = f"{GRAPH} spec.components.1.podTemplate"


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        (lambda d: d["spec"].update(comps=[]), "schema", f"{GRAPH} spec"),
        (lambda d: worker(d).update(type="workers"), "schema", f"{GRAPH} spec.components.1.type"),
        (lambda d: worker(d).update(replicas=-1), "schema", f"{GRAPH} spec.components.1.replicas"),
        (lambda d: worker(d).update(runtimeVersionOverride="v1"), "schema",
         f"{GRAPH} spec.components.1.runtimeVersionOverride"),
        (lambda d: container(d).update(name="app"), "schema", f"{GRAPH} spec.components.1.podTemplate.spec.containers"),
        # What only Kubernetes' own schema knows.
        (lambda d: container(d).update(evn=[]), "schema", f"{POD}.spec.containers.0"),
        (lambda d: container(d)["env"][0].update(value=3), "schema", f"{POD}.spec.containers.0.env.0.value"),
        (lambda d: container(d)["volumeMounts"][0].pop("mountPath"), "schema",
         f"{POD}.spec.containers.0.volumeMounts.0"),
        (lambda d: container(d)["env"].append({"name": "NGC_API_KEY", "value": "abc"}), "credential",
         f"{GRAPH} container main"),
        (lambda d: d["spec"]["components"][0]["podTemplate"]["spec"]["containers"][0]["args"].append(
            "--router-session-affinity-ttl-secs=1"), "affinity_in_round_robin",
         f"{GRAPH} spec.components.0.podTemplate.spec.containers.0.args.4"),
    ],
)  # fmt: skip
def test_a_broken_graph_is_found_out(change: Any, code: str, field: str) -> None:
    assert broken("DynamoGraphDeployment", change, "round-robin") == [(code, field)]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Job", lambda d: d["spec"].update(backoffLimits=1)),
        ("Job", lambda d: d["spec"].pop("template")),
        ("Service", lambda d: d["spec"]["ports"][0].update(port="http")),
        ("ConfigMap", lambda d: d["data"].update(PROFILE=1)),
        ("PersistentVolumeClaim", lambda d: d["spec"].update(accessModes="ReadWriteMany")),
    ],
)
def test_a_broken_object_of_kubernetes_is_found_out(kind: str, change: Any) -> None:
    assert [code for code, _ in broken(kind, change)] == ["schema"]


def test_a_kind_without_schema_is_a_finding_and_no_pass() -> None:
    found = check([{"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "x"}}])
    assert [each.code for each in found] == ["no_schema"]


@pytest.mark.parametrize("document", [{}, {"kind": "Job"}, {"apiVersion": "v1", "kind": "Pod"}])
def test_what_is_no_object_is_a_finding(document: dict[str, Any]) -> None:
    assert check([document])


def test_a_patch_that_leads_nowhere_is_a_finding() -> None:
    files = render("dynamo", profile="round-robin", sets=(*DYNAMO_SET, "overlay.ngc_api_key=true"))
    found = [copy.deepcopy(d) for f in files for d in f.documents]
    (kustomization,) = (d for d in found if d["kind"] == "Kustomization")
    kustomization["patches"][0]["patch"] = kustomization["patches"][0]["patch"].replace("components/1", "components/7")
    assert {each.code for each in check(found)} == {"patch"}


def test_every_finding_comes_with_the_refusal() -> None:
    with pytest.raises(Refusal) as refused:
        require_sound([d for f in render("dynamo") for d in f.documents])
    assert refused.value.stable_code == "manifest_invalid" and refused.value.exit_code == 3
    assert len(refused.value.errors) == 8 and "(and 7 more)" in refused.value.detail


def test_an_unknown_version_of_kubernetes_is_refused() -> None:
    for version in ("9.9", "x"):
        with pytest.raises(UsageError) as refused:
            check([of("Job")], kubernetes=version)
        assert refused.value.stable_code == "deploy_kubernetes_version"


def test_without_the_schemas_nothing_is_called_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_validate", None)
    with pytest.raises(StartRefused) as refused:
        check([of("Job")])
    assert refused.value.stable_code == "deploy_extra_missing" and "nothing was checked" in refused.value.detail


@pytest.mark.parametrize("file", sorted(set(CUSTOM.values())))
def test_our_condensed_schemas_are_schemas_and_say_what_they_are(file: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(file))
    assert "ondensed" in schema(file)["$comment"]
    assert json.loads((checking.SCHEMAS / file).read_text()) == schema(file)


def test_pod_templates_are_found_at_any_depth() -> None:
    assert [path for path, _ in pod_templates(of("DynamoGraphDeployment"))] == [
        "spec.components.0.podTemplate",
        "spec.components.1.podTemplate",
    ]


def kuberay() -> dict[tuple[str, str], Any]:
    key = (f"{KUBERAY['group']}/{KUBERAY['version']}", KUBERAY["kind"])
    return {key: closed(KUBERAY["openAPIV3Schema"])}


# What else an operator may ask for, and what it brings into a RayService.
OTHER_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "autoscaling": ("reasoner", ("autoscaling.enabled=true", "autoscaling.max_replicas=4", "worker.replicas=2")),
    "a node selector": ("reasoner", ("worker.node_selector.nvidia.com/gpu.product=NVIDIA-H200",)),
    "a variable": ("generator", ("worker.env.NCCL_DEBUG=INFO",)),
    "a new cluster": ("generator", ("upgrade=NewCluster",)),
    "the framework engine": (
        "generator", ("settings.engine=framework", "settings.parallelism_preset=latency", "worker.gpus=2"),
    ),
    "no GPU": ("generator", ("worker.gpus=0", "settings.device=cpu", "worker.gpu_taint=false")),
}  # fmt: skip


def test_ray_services_fit_kuberays_own_definition() -> None:
    assert fitting(kuberay()) == 2


@pytest.mark.parametrize("asked", OTHER_SETS)
def test_what_an_operator_may_ask_for_fits_it_too(asked: str) -> None:
    service, sets = OTHER_SETS[asked]
    base = GENERATOR_SET if service == "generator" else KUBERAY_SET
    plain, found = (
        [d for f in render("kuberay", service=service, sets=given) for d in f.documents]
        for given in (base, (*base, *sets))
    )
    assert plain != found, "the values do something"
    assert fitting(kuberay(), found) == 1
    assert check(found) == []


@pytest.mark.parametrize("at", ["serveConfigV2", "rayClusterConfig"])
def test_what_does_not_fit_it_is_seen(at: str) -> None:
    (definition,) = kuberay().values()
    wrong = next(document for document in documents() if document["kind"] == "RayService")
    jsonschema.Draft202012Validator(definition).validate(wrong)
    wrong["spec"][at + "s"] = wrong["spec"].pop(at)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(definition).validate(wrong)


@pytest.mark.skipif(not CRDS, reason="COSMOS3_CRD_DIR names no folder with more of the operators' own definitions")
def test_what_is_rendered_fits_other_definitions() -> None:
    known: dict[tuple[str, str], Any] = {}
    for path in Path(CRDS).glob("*.yaml"):
        for crd in yaml.safe_load_all(path.read_text()):
            for version in crd["spec"]["versions"]:
                key = (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
                known[key] = closed(version["schema"]["openAPIV3Schema"])
    assert fitting(known), f"none of {sorted(known)} was rendered"


def fitting(known: dict[tuple[str, str], Any], rendered: list[dict[str, Any]] | None = None) -> int:
    """How many rendered documents have a definition here; each fits it."""
    rendered = documents() if rendered is None else rendered
    found = [d for d in rendered if (d.get("apiVersion"), d.get("kind")) in known]
    for document in found:
        jsonschema.Draft202012Validator(known[document["apiVersion"], document["kind"]]).validate(document)
    return len(found)


def closed(node: Any) -> Any:
    """An API server drops unknown fields silently; here they are errors. Its own types (int-or-string) are put in."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: closed(value) for key, value in node.items()}
    if node.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in node and node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found
