"""--check: schemas, placeholders, credentials, contradictions; and that it never passes silently."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import lzma
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.manifests import DYNAMO_SET, GENERATOR_SET, KUBERAY_SET, PLACED, everything

from cosmos3_serve.deploy import check as checking
from cosmos3_serve.deploy.check import CUSTOM, check, pod_templates, require_sound, schema
from cosmos3_serve.deploy.crd import Kind, read_definitions
from cosmos3_serve.deploy.render import render, unfinished
from cosmos3_serve.errors import InputError, Refusal, StartRefused, UsageError

CRDS = Path(__file__).parent / "crds"
# A folder with more of the operators' own definitions: everything that is rendered is checked against them, too.
MORE = os.environ.get("COSMOS3_CRD_DIR", "")


@functools.cache
def own() -> dict[Kind, dict[str, Any]]:
    return read_definitions([CRDS])


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
    }


def test_a_storage_class_is_all_that_a_graph_needs() -> None:
    files = render("dynamo", sets=["cache.storage_class=shared-files"])
    later = unfinished("dynamo", files)
    assert later == {"perf/smoke.yaml": ("images.client",), "perf/perf.yaml": ("images.client",)}
    ready = [d for f in files if f.path not in later for d in f.documents]
    assert len(ready) == 6 and check(ready, definitions=own()) == []
    assert unfinished("dynamo", render("dynamo")) == later, "a storage class holds up the deployment itself"
    # What was asked for by name is wanted now; and without the storage class nothing is ready.
    assert unfinished("dynamo", files, ["perf"]) == {}
    names = {f"{d['kind']}/{d['metadata']['name']}" for f in files if f.path in later for d in f.documents}
    assert require_sound([d for f in files for d in f.documents], unfinished=names) == 10
    with pytest.raises(Refusal) as refused:
        require_sound([d for f in render("dynamo") for d in f.documents], unfinished=names)
    assert [e.field for e in refused.value.errors] == ["PersistentVolumeClaim/shared-model-cache spec.storageClassName"]


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


HEAD_MEMORY = "spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.resources.limits.memory"


def head_shm(spec: dict[str, Any]) -> dict[str, Any]:
    pod = spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    found: dict[str, Any] = next(v["emptyDir"] for v in pod["volumes"] if v["name"] == "shm")
    return found


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        ("RayService", lambda s: head_shm(s).update(sizeLimit="16Gi"), HEAD_MEMORY),
        ("RayService", lambda s: head_shm(s).pop("sizeLimit"), HEAD_MEMORY),
        ("DynamoGraphDeployment", lambda s: s["components"][1].update(sharedMemorySize="96Gi"),
         "spec.components.1.podTemplate.spec.containers.0.resources.limits.memory"),
    ],
)  # fmt: skip
def test_shared_memory_that_fills_the_memory_is_a_finding(kind: str, change: Any, field: str) -> None:
    document = of(kind)
    change(document["spec"])
    found = [each for each in check([document]) if each.code == "shared_memory"]
    assert [each.field.split(" ")[1] for each in found] == [field]


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
    assert len(refused.value.errors) == 3 and "(and 2 more)" in refused.value.detail


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


# What else an operator may ask for, and what it brings into a RayService.
OTHER_SETS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "autoscaling": (
        "kuberay", "reasoner", ("autoscaling.enabled=true", "autoscaling.max_replicas=4", "worker.replicas=2"),
    ),
    "a node selector": ("kuberay", "reasoner", ("worker.node_selector.nvidia.com/gpu.product=NVIDIA-H200",)),
    "a variable": ("kuberay", "generator", ("worker.env.NCCL_DEBUG=INFO",)),
    "a new cluster": ("kuberay", "generator", ("upgrade=NewCluster",)),
    "the framework engine": (
        "kuberay", "generator",
        ("settings.engine=framework", "settings.parallelism_preset=latency", "worker.gpus=2"),
    ),
    "no GPU": ("kuberay", "generator", ("worker.gpus=0", "settings.device=cpu", "worker.gpu_taint=false")),
    "placement": ("kuberay", "generator", PLACED),
    "placement of a graph": ("dynamo", "", PLACED),
    "web identity": (
        "kuberay", "reasoner", ("service_account.annotations.eks.amazonaws.com/role-arn=arn", "storage.region=x"),
    ),
    "authorities": ("kuberay", "generator", ("ca_bundle.config_map=company-ca",)),
    "authorities of a graph": ("dynamo", "", ("ca_bundle.config_map=company-ca",)),
    "another model": ("dynamo", "", ("model=acme/reasoner",)),
}  # fmt: skip


def test_the_definitions_are_the_ones_that_the_readme_names() -> None:
    readme = (CRDS / "README.md").read_text()
    files = sorted(CRDS.glob("*.xz"))
    assert len(files) == 4
    for path in files:
        (row,) = [line for line in readme.splitlines() if f"`{path.name}`" in line]
        assert hashlib.sha256(lzma.decompress(path.read_bytes())).hexdigest() in row


def test_what_is_rendered_fits_the_operators_own_definitions() -> None:
    assert fitting(own()) == 6, "two graphs, a copy of each in an overlay, and two RayServices"
    assert check(documents(), definitions=own()) == []


@pytest.mark.parametrize("asked", OTHER_SETS)
def test_what_an_operator_may_ask_for_fits_them_too(asked: str) -> None:
    target, service, sets = OTHER_SETS[asked]
    framework = "settings.engine=framework" in sets  # whose guardrail revision is pinned
    base = {"generator": KUBERAY_SET if framework else GENERATOR_SET, "reasoner": KUBERAY_SET, "": DYNAMO_SET}[service]
    plain, found = (
        [d for f in render(target, service=service, sets=given) for d in f.documents]
        for given in (base, (*base, *sets))
    )
    assert plain != found, "the values do something"
    assert fitting(own(), found) >= 1
    assert check(found, definitions=own()) == []


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        ("RayService", lambda s: s.update(serveConfigV3=s.pop("serveConfigV2")), "spec"),
        ("RayService", lambda s: s["rayClusterConfig"].update(rayVersions="2"), "spec.rayClusterConfig"),
        ("DynamoGraphDeployment", lambda s: s["components"][1].update(envs=[]), "spec.components.1"),
        (
            "DynamoGraphDeployment",
            lambda s: s["components"][0]["podTemplate"]["spec"]["containers"][0].update(imagePullPolice="Always"),
            "spec.components.0.podTemplate.spec.containers.0",
        ),
    ],
)
def test_what_does_not_fit_them_is_a_finding(kind: str, change: Any, field: str) -> None:
    document = of(kind)
    change(document["spec"])
    (definition,) = (schema for (_, each), schema in own().items() if each == kind and "v1alpha1" not in _)
    assert not jsonschema.Draft202012Validator(definition).is_valid(document)
    assert (kind, field) in {
        (f.field.split("/")[0], f.field.split(" ")[1]) for f in check([document], definitions=own())
    }


@pytest.mark.parametrize("text", ["kind: ConfigMap\n", "kind: CustomResourceDefinition\nspec: {}\n", ":\n  - ["])
def test_a_file_that_holds_no_definition_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text(text)
    for path in (tmp_path, tmp_path / "crd.yaml"):
        with pytest.raises(InputError) as refused:
            read_definitions([path])
        assert refused.value.exit_code == 2
    (tmp_path / "crd.yaml.xz").write_bytes(b"no xz")
    with pytest.raises(InputError) as refused:
        read_definitions([tmp_path / "crd.yaml.xz"])
    assert refused.value.stable_code == "crds_unreadable"
    with pytest.raises(InputError):
        read_definitions([tmp_path / "not-there.yaml"])


@pytest.mark.skipif(not MORE, reason="COSMOS3_CRD_DIR names no folder with more of the operators' own definitions")
def test_what_is_rendered_fits_other_definitions() -> None:
    known = read_definitions([Path(MORE)])
    assert fitting(known), f"none of {sorted(known)} was rendered"


def fitting(known: Mapping[Kind, Any], rendered: list[dict[str, Any]] | None = None) -> int:
    """How many rendered documents have a definition here; each fits it."""
    rendered = documents() if rendered is None else rendered
    found = [d for d in rendered if (d.get("apiVersion"), d.get("kind")) in known]
    for document in found:
        jsonschema.Draft202012Validator(known[document["apiVersion"], document["kind"]]).validate(document)
    return len(found)
