"""The Dynamo target: the names of NVIDIA's recipe, the two profiles, the overlay, the cache and the Jobs."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.manifests import DYNAMO_SET, PLACED, built_by_hand, kustomize

from cosmos3_serve.deploy.check import check
from cosmos3_serve.deploy.dynamo.values import PROFILES
from cosmos3_serve.deploy.render import render, write
from cosmos3_serve.errors import UsageError

# From NVIDIA's recipe, Cluster-specific settings: what an operator writes beside a copy of deploy.yaml.
NVIDIAS_OVERLAY = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - deploy.yaml
patches:
  - target:
      group: nvidia.com
      kind: DynamoGraphDeployment
    patch: |-
      - op: add
        path: /spec/components/1/podTemplate/spec/imagePullSecrets
        value:
          - name: registry-pull-secret
      - op: add
        path: /spec/components/1/podTemplate/spec/containers/0/env/-
        value:
          name: NGC_API_KEY
          valueFrom:
            secretKeyRef:
              name: ngc-api-secret
              key: NGC_API_KEY
      - op: add
        path: /spec/components/1/podTemplate/spec/nodeSelector
        value:
          nvidia.com/gpu.product: NVIDIA-H200
"""
EVERY_OVERLAY = (
    "overlay.image_pull_secret=registry-pull-secret",
    "overlay.ngc_api_key=true",
    "overlay.node_selector.nvidia.com/gpu.product=NVIDIA-H200",
)


# The worker's pod with all three patches, written out: neither Kustomize nor our own RFC 6902 had a hand in it.
PATCHED: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry-pull-secret"}],
    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
    "securityContext": {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"},
    "containers": [
        {
            "name": "main",
            "image": "nvcr.io/nim/nvidia/cosmos3:2.1.0",
            "command": ["/opt/nim/start_server.sh"],
            "env": [
                {"name": "NIM_MODEL_TYPE", "value": "reasoner"},
                {"name": "NIM_MODEL_VARIANT", "value": "nano"},
                {"name": "NIM_MODEL_SIZE", "value": "nano"},
                {"name": "NIM_PRECISION", "value": "fp8"},
                {"name": "NIM_CACHE_PATH", "value": "/opt/nim/.cache"},
                {"name": "NIM_DYNAMO_WORKER", "value": "true"},
                {"name": "NIM_DISCOVERY_BACKEND", "value": "kubernetes"},
                {"name": "DYN_REQUEST_PLANE", "value": "tcp"},
                {"name": "DYN_SELF_HOST_METADATA", "value": "true"},
                {"name": "DYN_SYSTEM_PORT", "value": "9090"},
                {"name": "DYN_MM_ALLOW_INTERNAL", "value": "1"},
                {
                    "name": "NGC_API_KEY",
                    "valueFrom": {"secretKeyRef": {"name": "ngc-api-secret", "key": "NGC_API_KEY"}},
                },
            ],
            "resources": {
                "requests": {"cpu": "16", "memory": "96Gi", "nvidia.com/gpu": "1"},
                "limits": {"memory": "96Gi", "nvidia.com/gpu": "1"},
            },
            "ports": [{"name": "nim-http", "containerPort": 8000}, {"name": "system", "containerPort": 9090}],
            "startupProbe": {
                "httpGet": {"path": "/v1/health/live", "port": "nim-http"},
                "periodSeconds": 10,
                "timeoutSeconds": 3,
                "failureThreshold": 120,
            },
            "livenessProbe": {
                "httpGet": {"path": "/v1/health/live", "port": "nim-http"},
                "periodSeconds": 10,
                "timeoutSeconds": 3,
                "failureThreshold": 3,
            },
            "volumeMounts": [{"name": "model-cache", "mountPath": "/opt/nim/.cache"}],
        }
    ],
    "volumes": [{"name": "model-cache", "persistentVolumeClaim": {"claimName": "shared-model-cache"}}],
}


def files(profile: str = "", *sets: str) -> dict[str, list[dict[str, Any]]]:
    return {f.path: f.documents for f in render("dynamo", profile=profile, sets=(*DYNAMO_SET, *sets))}


def graph(profile: str, *sets: str) -> dict[str, Any]:
    (document,) = files(profile, *sets)[f"vllm/agg-h200-{profile}/deploy.yaml"]
    return document


def test_the_paths_are_those_of_nvidias_recipe() -> None:
    assert set(files()) == {
        "model-cache/model-cache.yaml",
        "model-cache/model-download.yaml",
        "vllm/agg-h200-round-robin/deploy.yaml",
        "vllm/agg-h200-session-affinity/deploy.yaml",
        "perf/profiles/round-robin.yaml",
        "perf/profiles/session-affinity.yaml",
        "perf/smoke.yaml",
        "perf/perf.yaml",
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_the_graph_is_the_documented_one(profile: str) -> None:
    found = graph(profile)
    assert (found["apiVersion"], found["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    assert found["metadata"]["name"] == f"cosmos3-nano-reasoner-agg-h200-{profile}"
    frontend, worker = found["spec"]["components"]
    assert (frontend["name"], frontend["type"]) == ("Frontend", "frontend")
    assert (worker["name"], worker["replicas"]) == ("Worker", 8)
    (main,) = worker["podTemplate"]["spec"]["containers"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "1"
    variables = {each["name"]: each["value"] for each in main["env"]}
    assert (
        variables.items()
        >= {
            "NIM_MODEL_TYPE": "reasoner",
            "NIM_MODEL_SIZE": "nano",
            "NIM_PRECISION": "fp8",
            "NIM_DYNAMO_WORKER": "true",
        }.items()
    )
    # Without it a worker looks for others in a file of its own pod, and never joins the frontend.
    assert variables["NIM_DISCOVERY_BACKEND"] == "kubernetes" and variables["NIM_MODEL_VARIANT"] == "nano"
    (volume,) = worker["podTemplate"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == "shared-model-cache"
    assert main["volumeMounts"][0]["name"] == volume["name"]


def test_no_credential_and_no_node_placement_without_being_asked() -> None:
    text = yaml.safe_dump(files()["vllm/agg-h200-session-affinity/deploy.yaml"])
    for word in ("secretKeyRef", "NGC_API_KEY", "nodeSelector", "imagePullSecrets", "affinity:", "tolerations"):
        assert word not in text


def test_images_and_versions_are_nvidias_public_ones() -> None:
    frontend, worker = graph("round-robin")["spec"]["components"]
    images = [each["podTemplate"]["spec"]["containers"][0]["image"] for each in (frontend, worker)]
    assert images == ["nvcr.io/nvidia/ai-dynamo/dynamo-frontend:1.6.1", "nvcr.io/nim/nvidia/cosmos3:2.1.0"]
    # The operator is told what is in each image: NIM 2.1.0 holds Dynamo 1.5.0.
    assert [each["runtimeVersionOverride"] for each in (frontend, worker)] == ["1.6.1", "1.5.0"]
    frontend, worker = graph("round-robin", "worker.runtime_version=1.6.2", "images.worker=mirror.example/nim:3")[
        "spec"
    ]["components"]
    assert [each["runtimeVersionOverride"] for each in (frontend, worker)] == ["1.6.1", "1.6.2"]


def variables(*sets: str) -> dict[str, str]:
    worker = graph("round-robin", *sets)["spec"]["components"][1]
    return {each["name"]: each["value"] for each in worker["podTemplate"]["spec"]["containers"][0]["env"]}


def test_the_served_name_reaches_the_nim_and_those_who_ask_it() -> None:
    found = variables("model=acme/reasoner")
    assert found["NIM_SERVED_MODEL_NAME"] == "acme/reasoner"
    assert json.loads(found["NIM_DYNAMO_ARGS"]) == {"served_model_name": "acme/reasoner"}
    (config,) = files("", "model=acme/reasoner")["perf/profiles/round-robin.yaml"]
    assert config["data"]["MODEL"] == "acme/reasoner"
    assert not {"NIM_SERVED_MODEL_NAME", "NIM_DYNAMO_ARGS"} & set(variables()), "by default the NIM names it so itself"
    assert variables("worker.env.NIM_DYNAMO_ARGS={}")["NIM_DYNAMO_ARGS"] == "{}"
    with pytest.raises(UsageError) as refused:
        graph("round-robin", "model=acme/reasoner", "worker.env.NIM_DYNAMO_ARGS={}")
    assert [each.field for each in refused.value.errors] == ["worker.env.NIM_DYNAMO_ARGS"]


def test_the_download_picks_the_profile_that_the_workers_pick() -> None:
    (job,) = files("", "worker.precision=bf16")["model-cache/model-download.yaml"]
    job_env = {v["name"]: v.get("value") for v in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    worker_env = variables("worker.precision=bf16")
    for name in ("NIM_MODEL_TYPE", "NIM_MODEL_VARIANT", "NIM_MODEL_SIZE", "NIM_PRECISION", "NIM_CACHE_PATH"):
        assert job_env[name] == worker_env[name]


def test_a_probe_names_a_port_that_the_container_lists() -> None:
    main = graph("round-robin")["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert {main[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")} <= set(ports)
    # The operator's own readiness probe names `system`, and our list of ports replaces the operator's.
    assert ports["system"] == int(variables()["DYN_SYSTEM_PORT"])


def pods(*sets: str) -> dict[str, dict[str, Any]]:
    """Every pod of the target, by whose it is."""
    found = {
        each["name"]: each["podTemplate"]["spec"] for each in graph("session-affinity", *sets)["spec"]["components"]
    }
    for documents in files("", *sets).values():
        found |= {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Job"}
    return found


def test_every_pod_takes_pull_secrets_and_placement() -> None:
    found = pods(*PLACED)
    assert len(found) == 5
    for name, pod in found.items():
        assert pod["imagePullSecrets"] == [{"name": "mirror"}, {"name": "second"}], name
        assert pod["nodeSelector"] == {"pool": "cosmos"}
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        on_gpu = name in ("Worker", "cosmos3-nano-reasoner-model-download")
        assert term["matchExpressions"] == [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]},
            {"key": "spot", "operator": "DoesNotExist"},
            *([{"key": "nvidia.com/gpu.memory", "operator": "Exists"}] if on_gpu else []),
        ]
        assert pod["priorityClassName"] == ("serving-high" if on_gpu else "batch-low")
        assert pod.get("runtimeClassName") == ("nvidia" if on_gpu else None)
        assert pod["tolerations"] == [
            {"key": "dedicated", "operator": "Equal", "value": "cosmos", "effect": "NoSchedule"},
            {"key": "spot", "operator": "Exists"},
            *([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] if on_gpu else []),
        ]


def test_pods_that_reach_out_trust_authorities_of_ones_own() -> None:
    for name, pod in pods("ca_bundle.config_map=company-ca").items():
        trusting = {v["name"] for v in pod["containers"][0].get("env", [])} >= {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
        assert trusting == (name != "Frontend"), "the frontend asks workers alone"
        assert trusting == ({"name": "ca-bundle", "configMap": {"name": "company-ca"}} in pod.get("volumes", []))


def test_shared_memory_is_below_the_workers_memory() -> None:
    with pytest.raises(UsageError) as refused:
        graph("round-robin", "worker.shm=128Gi")
    assert [each.field for each in refused.value.errors] == ["worker"]


@pytest.mark.parametrize("role", ["frontend", "worker", "download", "perf"])
def test_each_role_has_a_placement_of_its_own(role: str) -> None:
    plain, found = pods(), pods(f"{role}.priority_class=special", f"{role}.runtime_class=own")
    changed = {name for name in plain if plain[name] != found[name]}
    assert (
        changed
        == {
            "frontend": {"Frontend"},
            "worker": {"Worker", "cosmos3-nano-reasoner-model-download"},
            "download": {"cosmos3-nano-reasoner-model-download"},
            "perf": {"cosmos3-nano-reasoner-smoke", "cosmos3-nano-reasoner-perf"},
        }[role]
    )


def flags(document: dict[str, Any]) -> list[str]:
    return list(document["spec"]["components"][0]["podTemplate"]["spec"]["containers"][0]["args"])


def test_the_profiles_differ_where_they_must_and_nowhere_else() -> None:
    robin, affinity = (graph(profile) for profile in PROFILES)
    ttl = ["--router-session-affinity-ttl-secs", "300"]
    assert flags(affinity) == flags(robin) + ttl
    same = copy.deepcopy(affinity)
    same["metadata"]["name"] = robin["metadata"]["name"]
    same["spec"]["components"][0]["podTemplate"]["spec"]["containers"][0]["args"] = flags(robin)
    assert same == robin


def test_the_jobs_words_of_two_profiles_differ_in_whom_they_ask_and_nowhere_else() -> None:
    robin, affinity = (files()[f"perf/profiles/{profile}.yaml"] for profile in PROFILES)
    same = copy.deepcopy(affinity)
    data = same[0]["data"]
    assert data.pop("PROFILE") == "session-affinity"
    assert data.pop("COSMOS3_REASONER_ENDPOINT").endswith("-session-affinity-frontend:8000")
    same[0]["data"] = {**data, **{k: robin[0]["data"][k] for k in ("PROFILE", "COSMOS3_REASONER_ENDPOINT")}}
    assert same == robin


def test_the_round_robin_manifest_has_no_affinity_flag() -> None:
    assert "affinity" not in yaml.safe_dump(graph("round-robin"))
    assert flags(graph("round-robin", "frontend.migration_limit=3"))[-2:] == ["--migration-limit", "3"]


def test_soft_mode_and_a_migration_limit_are_set_on_request() -> None:
    found = flags(graph("session-affinity", "affinity.mode=soft", "affinity.ttl_s=60", "frontend.migration_limit=3"))
    assert found[-6:] == [
        *("--router-session-affinity-ttl-secs", "60", "--router-session-affinity-mode", "soft"),
        *("--migration-limit", "3"),
    ]
    assert "--router-session-affinity-mode" not in flags(graph("session-affinity"))


def test_an_affinity_value_is_refused_where_it_would_do_nothing() -> None:
    with pytest.raises(UsageError) as refused:
        render("dynamo", profile="round-robin", sets=["affinity.mode=soft"])
    assert refused.value.stable_code == "deploy_not_in_profile"


@pytest.mark.parametrize("profile", PROFILES)
def test_nvidias_own_overlay_builds(profile: str, tmp_path: Path) -> None:
    write(render("dynamo", profile=profile, sets=DYNAMO_SET, parts=["deploy"]), tmp_path)
    folder = tmp_path / "vllm" / f"agg-h200-{profile}"
    (folder / "kustomization.yaml").write_text(NVIDIAS_OVERLAY)
    # Both ways, with kubectl and without, must make the object that is written out here.
    for (built,) in (kustomize(folder), built_by_hand(folder)):
        assert built["spec"]["components"][1]["podTemplate"]["spec"] == PATCHED
        assert check([built]) == []
        plain = graph(profile)
        plain["spec"]["components"][1]["podTemplate"]["spec"] = PATCHED
        assert built == plain, "nothing else is touched"


@pytest.mark.parametrize("asked", [EVERY_OVERLAY, EVERY_OVERLAY[:1], EVERY_OVERLAY[1:2], EVERY_OVERLAY[2:]])
def test_our_overlay_adds_only_what_is_asked(asked: tuple[str, ...], tmp_path: Path) -> None:
    rendered = render("dynamo", profile="session-affinity", sets=(*DYNAMO_SET, *asked))
    write(rendered, tmp_path)
    pod = copy.deepcopy(PATCHED)
    if EVERY_OVERLAY[0] not in asked:
        del pod["imagePullSecrets"]
    if EVERY_OVERLAY[1] not in asked:
        pod["containers"][0]["env"].pop()
    if EVERY_OVERLAY[2] not in asked:
        del pod["nodeSelector"]
    expected = graph("session-affinity")
    expected["spec"]["components"][1]["podTemplate"]["spec"] = pod
    assert check([d for f in rendered for d in f.documents]) == []
    assert kustomize(tmp_path / "overlays" / "session-affinity") == [expected]
    assert built_by_hand(tmp_path / "overlays" / "session-affinity") == [expected]


def test_without_a_wish_there_is_no_overlay() -> None:
    assert not [path for path in files() if "overlay" in path]


def test_the_overlay_in_the_file_is_the_one_that_is_applied() -> None:
    (document,) = files("round-robin", *EVERY_OVERLAY)["overlays/round-robin/kustomization.yaml"]
    assert document == yaml.safe_load(NVIDIAS_OVERLAY)


def test_the_cache_is_written_by_several_nodes_and_the_job_shares_image_and_claim() -> None:
    (claim,) = files()["model-cache/model-cache.yaml"]
    assert claim["metadata"]["name"] == "shared-model-cache"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (job,) = files()["model-cache/model-download.yaml"]
    assert job["metadata"]["name"] == "cosmos3-nano-reasoner-model-download"
    pod, worker = job["spec"]["template"]["spec"], graph("round-robin")["spec"]["components"][1]["podTemplate"]["spec"]
    assert pod["containers"][0]["image"] == worker["containers"][0]["image"]
    assert pod["volumes"] == worker["volumes"]
    assert pod["containers"][0]["volumeMounts"] == worker["containers"][0]["volumeMounts"]
    assert pod["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "ngc-api-secret"
    # The documented command waits 3600 s for it.
    assert job["spec"]["activeDeadlineSeconds"] <= 3600


@pytest.mark.parametrize("kind", ["smoke", "perf"])
def test_a_job_serves_its_videos_through_a_service_that_finds_its_pod(kind: str) -> None:
    service, job = files()[f"perf/{kind}.yaml"]
    assert job["metadata"]["name"] == service["metadata"]["name"] == f"cosmos3-nano-reasoner-{kind}"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    script = container["command"][-1]
    assert f"--video-public-url http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}" in script
    assert f"--video-port {service['spec']['ports'][0]['targetPort']}" in script
    assert "--video-host 0.0.0.0" in script


def test_the_profile_says_which_deployment_the_jobs_ask() -> None:
    for profile in PROFILES:
        (config,) = files()[f"perf/profiles/{profile}.yaml"]
        assert config["data"]["PROFILE"] == profile
        wanted = f"http://{graph(profile)['metadata']['name']}-frontend:8000"
        assert config["data"]["COSMOS3_REASONER_ENDPOINT"] == wanted
        for kind in ("smoke", "perf"):
            (container,) = files()[f"perf/{kind}.yaml"][1]["spec"]["template"]["spec"]["containers"]
            assert container["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]


def test_the_sweep_is_that_of_nvidias_recipe() -> None:
    script = files()["perf/perf.yaml"][1]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    for words in ("--videos 200", "--questions 20", "--output-tokens 128", "--concurrency 1,2,4,8,16", "--count 200"):
        assert re.search(rf"{re.escape(words)}(\s|$)", script)
    assert "--level-summaries" in script and "--seconds 30 --fps 2" in script


def test_results_can_be_kept() -> None:
    pod = files("", "perf.results_claim=bench-results")["perf/perf.yaml"][1]["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "scratch", "persistentVolumeClaim": {"claimName": "bench-results"}}]


@pytest.mark.parametrize("name", ["x", "a-name-of-twenty-five-char"[:25]])
def test_another_name_stays_within_what_a_service_may_be_called(name: str) -> None:
    documents = [d for each in files("", f"name={name}").values() for d in each]
    assert all(len(d["metadata"]["name"] + "-frontend") <= 63 for d in documents)
