"""The KubeRay target: what the issue asks of a RayService, and that it names what the services really have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.manifests import GENERATOR_SET, KUBERAY_SET, PLACED, kustomize

from cosmos3_serve.contract.wire import APP_NAME, DIFFUSERS_REVISION
from cosmos3_serve.deploy.check import check
from cosmos3_serve.deploy.fields import amount
from cosmos3_serve.deploy.kuberay import applications, pods
from cosmos3_serve.deploy.kuberay.pods import AGENT_HEALTH, AGENT_PORT
from cosmos3_serve.deploy.kuberay.values import SERVICES, KuberayValues
from cosmos3_serve.deploy.render import render, write
from cosmos3_serve.deploy.values import catalogue
from cosmos3_serve.errors import UsageError
from cosmos3_serve.service import logs
from cosmos3_serve.settings import GeneratorSettings, ReasonerSettings
from cosmos3_serve.weights.model_cache import MOUNT, ModelCache


def files(service: str, *sets: str, profile: str = "") -> dict[str, list[dict[str, Any]]]:
    found = render("kuberay", service=service, profile=profile, sets=(*KUBERAY_SET, *sets))
    return {f.path: f.documents for f in found}


def objects(service: str, *sets: str, profile: str = "") -> dict[str, dict[str, Any]]:
    return {
        f"{d['kind']}/{d['metadata']['name']}": d
        for documents in files(service, *sets, profile=profile).values()
        for d in documents
        if "metadata" in d
    }


def ray_service(service: str, *sets: str, profile: str = "") -> dict[str, Any]:
    (found,) = [d for d in objects(service, *sets, profile=profile).values() if d["kind"] == "RayService"]
    return found


def cluster(service: str, *sets: str) -> dict[str, Any]:
    return dict(ray_service(service, *sets)["spec"]["rayClusterConfig"])


def templates(service: str, *sets: str) -> list[dict[str, Any]]:
    found = cluster(service, *sets)
    return [found["headGroupSpec"]["template"], found["workerGroupSpecs"][0]["template"]]


def worker(service: str, *sets: str) -> dict[str, Any]:
    return dict(templates(service, *sets)[1]["spec"]["containers"][0])


def serve(service: str, *sets: str, profile: str = "") -> dict[str, Any]:
    return dict(yaml.safe_load(ray_service(service, *sets, profile=profile)["spec"]["serveConfigV2"]))


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_rendered_is_sound_and_builds(service: str, tmp_path: Path) -> None:
    rendered = render("kuberay", service=service, sets=GENERATOR_SET if service == "generator" else KUBERAY_SET)
    assert check([d for f in rendered for d in f.documents]) == []
    write(rendered, tmp_path)
    built = {(d["kind"], d["metadata"]["name"]): d for d in kustomize(tmp_path / "kuberay")}
    deploy = next(f.documents for f in rendered if f.path == "kuberay/deploy.yaml")
    assert built == {(d["kind"], d["metadata"]["name"]): d for d in deploy}


@pytest.mark.parametrize("service", SERVICES)
def test_secrets_are_named_and_never_written(service: str) -> None:
    for template in templates(service):
        (container,) = template["spec"]["containers"]
        sources = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in container["env"] if "valueFrom" in v}
        assert sources["HF_TOKEN"] == {"name": "cosmos3-hub", "key": "HF_TOKEN", "optional": True}
        assert set(sources) == {"HF_TOKEN", *pods.STORAGE_KEYS}
        values = {v["name"]: v["value"] for v in container["env"] if "value" in v}
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "token"]
        assert values[pods.TOKEN_FILE[service]].startswith(mount["mountPath"]) and mount["readOnly"]  # type: ignore[index]
        (volume,) = [v for v in template["spec"]["volumes"] if v["name"] == "token"]
        assert volume["secret"]["secretName"] == "cosmos3-token"


def test_the_volumes_of_the_generator() -> None:
    both = templates("generator")
    head = both[0]
    for template in both:
        mounts = {m["mountPath"]: m["name"] for m in template["spec"]["containers"][0]["volumeMounts"]}
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        assert volumes[mounts["/outputs"]]["persistentVolumeClaim"]["claimName"] == "cosmos3-outputs"
        assert volumes[mounts[str(MOUNT)]]["persistentVolumeClaim"]["claimName"] == "npa-model-cache"
        size = "4Gi" if template is head else "16Gi"
        assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
    claims = [d for d in objects("generator").values() if d["metadata"]["labels"].get(
        "app.kubernetes.io/component") in ("outputs", "model-cache")]  # fmt: skip
    assert [c["spec"]["accessModes"] for c in claims] == [["ReadWriteMany"]] * 2
    assert "/outputs" not in {m["mountPath"] for m in worker("reasoner")["volumeMounts"]}


def test_the_reasoners_media_are_on_the_pods_own_disk() -> None:
    for template in templates("reasoner"):
        container = template["spec"]["containers"][0]
        values = {v["name"]: v.get("value") for v in container["env"]}
        settings = ReasonerSettings.load(
            {}, {k: v for k, v in values.items() if v and k.startswith("COSMOS3_REASONER")}
        )
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        assert volumes[mounts[str(settings.store_dir)]] == {"name": "media", "emptyDir": {"sizeLimit": "48Gi"}}
        assert 2 * settings.store_bytes < 48 * 2**30, "media and uploads"
    assert "media" not in {m["name"] for m in worker("generator")["volumeMounts"]}


@pytest.mark.parametrize("service", SERVICES)
def test_the_cache_variables_are_the_services_own(service: str) -> None:
    values = {v["name"]: v.get("value") for v in worker(service)["env"]}
    wanted = ModelCache(MOUNT, "test").variables()
    assert {name: values[name] for name in wanted} == wanted
    assert values["NPA_MODEL_CACHE_DIR"] == str(MOUNT)


@pytest.mark.parametrize("service", SERVICES)
def test_the_services_words_go_to_the_containers_log(service: str) -> None:
    for template in templates(service):
        values = {v["name"]: v.get("value") for v in template["spec"]["containers"][0]["env"]}
        assert values[logs.TARGET_ENV] == "/proc/1/fd/2"


@pytest.mark.parametrize("service", SERVICES)
def test_probes_ask_with_the_services_token(service: str) -> None:
    found = worker(service)
    for name, path in (("startupProbe", "/health"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")):
        command = found[name]["exec"]["command"]
        assert command[:4] == ["cosmos3-probe", service, "--path", path]
        # The probe's own patience ends first, so that the kubelet sees an exit code and not a kill.
        assert float(command[-1]) < found[name]["timeoutSeconds"]
    assert found["startupProbe"]["periodSeconds"] * found["startupProbe"]["failureThreshold"] >= 3600
    assert found["ports"] == [{"name": "serve", "containerPort": 8000}]


@pytest.mark.parametrize("service", SERVICES)
def test_the_head_names_the_port_that_the_operator_makes_the_service_of(service: str) -> None:
    on_head, on_worker = (
        {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        for template in templates(service)
    )
    assert on_head["serve"] == on_worker["serve"] == applications.PORT
    # Without it the operator makes no Service: the rule that finds it out in a manifest changed by hand.
    document = ray_service(service, "settings.guardrails=off") if service == "generator" else ray_service(service)
    group = document["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert check([document]) == []
    group["ports"][-1]["containerPort"] = 8001
    (found,) = check([document])
    assert found.code == "serve_port" and "workerGroupSpecs.0" in found.field and "8000 here and 8001" in found.text
    group["ports"].pop()
    (found,) = check([document])
    assert found.code == "serve_port" and "headGroupSpec" in found.field and "no port is named serve" in found.text


@pytest.mark.parametrize(
    ("sets", "right"),
    [
        (("worker.gpus=2",), ("worker.gpus=2", "settings.engine=framework", "settings.parallelism_preset=latency")),
        (("worker.gpus=2", "settings.engine=framework"), ("worker.gpus=1", "settings.engine=framework")),
        (("settings.world_size=4",), ("settings.world_size=1",)),
    ],
)
def test_gpus_that_an_engine_would_refuse_are_refused(sets: tuple[str, ...], right: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        ray_service("generator", "settings.guardrails=off", *sets)
    assert refused.value.stable_code == "deploy_bad_value" and "worker.gpus" in str(refused.value.remedy)
    assert check([ray_service("generator", "settings.guardrails=off", *right)]) == []


def test_gpus_that_an_engine_would_refuse_are_found_in_a_changed_file() -> None:
    document = ray_service("generator", "settings.guardrails=off")
    text = document["spec"]["serveConfigV2"]
    document["spec"]["serveConfigV2"] = text.replace("args:\n", "args:\n      world_size: 4\n")
    found = [each for each in check([document]) if each.code == "placement"]
    assert found and found[0].field.endswith("applications.0.args") and "worker.gpus" in found[0].text


@pytest.mark.parametrize("service", SERVICES)
def test_the_heads_probes_need_no_program_of_the_image(service: str) -> None:
    """Operators below 1.6 add a command with wget wherever a probe is missing; our images have none."""
    (container,) = templates(service)[0]["spec"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert (
            container[probe]["httpGet"] == {"path": AGENT_HEALTH, "port": AGENT_PORT} and "exec" not in container[probe]
        )
    for each in (container, worker(service)):
        assert {"readinessProbe", "livenessProbe"} <= set(each), "or the operator adds its own"
        assert "wget" not in str(each)


def test_rays_agent_answers_there_without_a_token() -> None:
    from ray._private import ray_constants
    from ray.dashboard import http_server_agent

    assert AGENT_PORT == ray_constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
    assert AGENT_HEALTH in http_server_agent.PUBLIC_EXACT_PATHS


@pytest.mark.parametrize("service", SERVICES)
def test_shared_memory_is_below_the_memory_that_holds_it(service: str) -> None:
    for template in templates(service):
        (container,) = template["spec"]["containers"]
        (shm,) = [v["emptyDir"]["sizeLimit"] for v in template["spec"]["volumes"] if v["name"] == "shm"]
        assert amount(shm) < amount(container["resources"]["limits"]["memory"])


def pods_of_all(service: str, *sets: str) -> dict[str, dict[str, Any]]:
    """Every pod of the target: head, worker, job, cron job."""
    head, worker = templates(service, *sets)
    found = {f"{service} head": head["spec"], f"{service} worker": worker["spec"]}
    for name, document in objects(service, *sets).items():
        if document["kind"] == "Job":
            found[name] = document["spec"]["template"]["spec"]
        if document["kind"] == "CronJob":
            found[name] = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert len(found) == (4 if service == "generator" else 2)
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_every_pod_takes_pull_secrets_and_placement(service: str) -> None:
    for name, pod in pods_of_all(service, *PLACED).items():
        on_gpu = name.endswith(" worker")
        assert pod["imagePullSecrets"] == [{"name": "mirror"}, {"name": "second"}], name
        assert pod["nodeSelector"] == {"pool": "cosmos"}
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert len(term["matchExpressions"]) == (3 if on_gpu else 2), "those of all pods, and the role's own"
        assert pod["priorityClassName"] == ("serving-high" if on_gpu else "batch-low")
        assert pod.get("runtimeClassName") == ("nvidia" if on_gpu else None)
        assert {each["key"] for each in pod["tolerations"]} == {"dedicated", "spot"} | (
            {"nvidia.com/gpu"} if on_gpu else set()
        )
    assert not {"imagePullSecrets", "affinity", "priorityClassName", "runtimeClassName"} & {
        key for pod in pods_of_all(service).values() for key in pod
    }


@pytest.mark.parametrize("service", SERVICES)
def test_every_pod_knows_the_storage_by_keys_or_by_web_identity(service: str) -> None:
    for name, pod in pods_of_all(service).items():
        (container,) = pod["containers"]
        keys = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in container["env"] if v["name"].startswith("AWS_")}
        assert set(keys) == {
            "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_SESSION_TOKEN",
        }  # fmt: skip
        assert all(ref["name"] == "cosmos3-s3" and ref["key"] == key for key, ref in keys.items())
        assert keys["AWS_REGION"]["optional"] and keys["AWS_SESSION_TOKEN"]["optional"]
        # A batch without its storage must not start; a service may do without one.
        assert keys["AWS_ACCESS_KEY_ID"].get("optional") is (True if name.startswith(service) else None)
        assert "serviceAccountName" not in pod
    role = "arn:aws:iam::1:role/cosmos3"
    sets = (
        f"service_account.annotations.eks.amazonaws.com/role-arn={role}",
        "storage.endpoint=https://s3.eu-north-1.amazonaws.com", "storage.region=eu-north-1",
    )  # fmt: skip
    (account,) = [d for d in objects(service, *sets).values() if d["kind"] == "ServiceAccount"]
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": role}
    for pod in pods_of_all(service, *sets).values():
        assert pod["serviceAccountName"] == account["metadata"]["name"]
        env = {v["name"]: v for v in pod["containers"][0]["env"]}
        assert env["AWS_ENDPOINT_URL"]["value"] == "https://s3.eu-north-1.amazonaws.com"
        assert env["AWS_REGION"]["value"] == "eu-north-1"
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            assert env[key]["valueFrom"]["secretKeyRef"]["optional"], "there are none with web identity"
    # One that exists already is named and not rendered.
    found = objects(service, "service_account.name=mine")
    assert not [d for d in found.values() if d["kind"] == "ServiceAccount"]
    assert {pod["serviceAccountName"] for pod in pods_of_all(service, "service_account.name=mine").values()} == {"mine"}


@pytest.mark.parametrize("service", SERVICES)
def test_every_pod_trusts_authorities_of_ones_own(service: str) -> None:
    for pod in pods_of_all(service, "ca_bundle.config_map=company-ca", "ca_bundle.key=all.pem").values():
        (container,) = pod["containers"]
        (volume,) = [v for v in pod["volumes"] if v.get("configMap") == {"name": "company-ca"}]
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == volume["name"]]
        env = {v["name"]: v.get("value") for v in container["env"]}
        for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
            assert env[variable] == f"{mount['mountPath']}/all.pem" and mount["readOnly"]


@pytest.mark.parametrize("service", SERVICES)
def test_an_ingress_speaks_tls_and_the_policy_lets_its_controller_in(service: str) -> None:
    sets = (
        "ingress.class_name=nginx",
        "ingress.controller_namespace=ingress",
        "ingress.annotations.example.com/timeout=3600",
    )
    name = ray_service(service)["metadata"]["name"]
    found = objects(service, *sets)
    ingress = found[f"Ingress/{name}"]
    assert ingress["metadata"]["annotations"] == {"example.com/timeout": "3600"}
    (tls,), (rule,) = ingress["spec"]["tls"], ingress["spec"]["rules"]
    assert tls == {"hosts": ["cosmos3.example"], "secretName": f"{name}-tls"} and rule["host"] == "cosmos3.example"
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": f"{name}-serve-svc", "port": {"number": applications.PORT}}
    peers = found[f"NetworkPolicy/{name}"]["spec"]["ingress"][1]["from"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}} in peers
    assert check([ingress]) == []
    # `apply -k` opens nothing by itself.
    (kustomization,) = files(service)["kuberay/kustomization.yaml"]
    assert kustomization["resources"] == ["deploy.yaml"]


@pytest.mark.parametrize(("service", "seconds"), [("generator", 600), ("reasoner", 60), ("generator", 1800)])
def test_the_grace_period_comes_from_the_settings(service: str, seconds: int) -> None:
    sets = (f"settings.drain_timeout_s={seconds}",)
    for template in templates(service, *sets):
        (container,) = template["spec"]["containers"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        patience = float(hook[hook.index("--timeout") + 1])
        # docs/operations.md: more than the drain and 45 seconds; the hook ends within it, too.
        assert template["spec"]["terminationGracePeriodSeconds"] > max(seconds + 45, patience)
        assert patience > seconds
    for app in serve(service, *sets)["applications"]:
        assert MODELS[service].load(app["args"], environ={}).drain_timeout_s == seconds


MODELS = {"generator": GeneratorSettings, "reasoner": ReasonerSettings}


def test_the_generator_drains_for_ten_minutes_unless_told_otherwise() -> None:
    assert templates("generator")[1]["spec"]["terminationGracePeriodSeconds"] == 660
    assert serve("generator")["applications"][0]["args"]["drain_timeout_s"] == 600


def test_autoscaling_is_off_unless_asked_for() -> None:
    for service in SERVICES:
        found = cluster(service)
        assert found["enableInTreeAutoscaling"] is False
        group = found["workerGroupSpecs"][0]
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"] == 1
        assert templates(service)[0]["spec"]["automountServiceAccountToken"] is False
    found = cluster("reasoner", "autoscaling.enabled=true", "autoscaling.max_replicas=4", "worker.replicas=2")
    group = found["workerGroupSpecs"][0]
    assert found["enableInTreeAutoscaling"] and (group["minReplicas"], group["maxReplicas"]) == (1, 4)
    # Ray's autoscaler asks Kubernetes for pods, also under a ServiceAccount that mounts no token by itself.
    assert found["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"] is True


@pytest.mark.parametrize("service", SERVICES)
def test_rays_ports_demand_a_token_and_the_head_runs_no_replica(service: str) -> None:
    found = cluster(service)
    assert found["authOptions"] == {"mode": "token"}
    assert found["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert ray_service(service)["spec"]["excludeHeadPodFromServeSvc"] is True
    for app in serve(service)["applications"]:
        for deployment in app["deployments"]:
            assert deployment["ray_actor_options"]["num_cpus"] >= 1, "it could land on the head"


@pytest.mark.parametrize("service", SERVICES)
def test_the_network_policy_is_an_allow_list(service: str) -> None:
    name = ray_service(service)["metadata"]["name"]
    spec = objects(service)[f"NetworkPolicy/{name}"]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    for template in templates(service):
        assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    own, clients, operator = spec["ingress"]
    assert own["from"] == [{"podSelector": spec["podSelector"]}] and "ports" not in own
    assert clients["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert operator["ports"] == [{"port": 8265, "protocol": "TCP"}]
    # Whatever is not own pods has ports, and the outside excludes private addresses and the cloud's metadata.
    assert all("ports" in rule for rule in spec["egress"][1:])
    outside = [rule for rule in spec["egress"] if {"port": 443, "protocol": "TCP"} in rule.get("ports", [])]
    (block,) = [p["ipBlock"] for rule in outside for p in rule["to"]]
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(block["except"])


@pytest.mark.parametrize("service", SERVICES)
def test_names_are_resolved_with_a_cache_on_the_node_and_on_openshift(service: str) -> None:
    name = ray_service(service)["metadata"]["name"]
    egress = objects(service)[f"NetworkPolicy/{name}"]["spec"]["egress"]
    both = [{"port": port, "protocol": each} for port in (53, 5353) for each in ("UDP", "TCP")]
    assert egress[1] == {
        "to": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": each}}}
            for each in ("kube-system", "openshift-dns")
        ],
        "ports": both,
    }
    # A cache on the node is on the host's network: no selector matches it, an address does.
    assert egress[2] == {"to": [{"ipBlock": {"cidr": each}} for each in ("0.0.0.0/0", "::/0")], "ports": both[:2]}
    narrow = objects(
        service, "network.dns_cidrs=169.254.20.10/32", "network.dns_namespaces=dns", "network.dns_ports=53"
    )
    egress = narrow[f"NetworkPolicy/{name}"]["spec"]["egress"]
    assert egress[1]["ports"] == both[:2] and len(egress[1]["to"]) == 1
    assert egress[2]["to"] == [{"ipBlock": {"cidr": "169.254.20.10/32"}}]


def test_the_allow_list_can_be_narrowed() -> None:
    sets = (
        "network.egress_cidrs=203.0.113.0/24,10.8.0.0/16",
        "network.private_cidrs=10.1.2.3/32",
        "network.client_labels.app=batch",
        "network.client_namespace=jobs",
        "network.egress_ports=443,9000/tcp,443/UDP",
    )
    spec = objects("generator", *sets)["NetworkPolicy/cosmos3-generator"]["spec"]
    blocks = [p["ipBlock"] for p in spec["egress"][-1]["to"]]
    # An exception outside its block would be refused by the cluster.
    assert blocks == [{"cidr": "203.0.113.0/24"}, {"cidr": "10.8.0.0/16"}, {"cidr": "10.1.2.3/32"}]
    assert [(p["port"], p["protocol"]) for p in spec["egress"][-1]["ports"]] == [
        (443, "TCP"), (9000, "TCP"), (443, "UDP"),
    ]  # fmt: skip
    assert spec["ingress"][1]["from"] == [
        {"podSelector": {"matchLabels": {"app": "batch"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "jobs"}}},
    ]
    sets = ("network.egress_cidrs=", "network.dns_cidrs=")
    closed = objects("generator", *sets)["NetworkPolicy/cosmos3-generator"]["spec"]
    assert len(closed["egress"]) == 2  # own pods and the cluster's DNS


def test_the_open_default_of_the_allow_list_is_said_where_it_is_set() -> None:
    (network,) = [row for row in catalogue(KuberayValues) if row[0] == "network.egress_cidrs"]
    assert network[1] == "0.0.0.0/0" and "every public one" in network[2]
    assert KuberayValues().network.egress_ports == ("443/TCP",)


@pytest.mark.parametrize("service", SERVICES)
def test_a_disruption_budget_finds_each_kind_of_pod(service: str) -> None:
    name = ray_service(service)["metadata"]["name"]
    for template, role in zip(templates(service), ("head", "worker"), strict=True):
        spec = objects(service)[f"PodDisruptionBudget/{name}-{role}"]["spec"]
        assert spec["selector"]["matchLabels"] == template["metadata"]["labels"]
        # A node's drain goes through: the pod's hook drains the service first. Nor does an unready pod hold it.
        assert spec["minAvailable"] == 0 and spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        held = objects(service, "disruption.max_unavailable=0", "disruption.hold_head=true")
        assert held[f"PodDisruptionBudget/{name}-{role}"]["spec"]["minAvailable"] == 1


@pytest.mark.parametrize(
    ("sets", "kept"),
    [
        ((), 0),
        (("worker.replicas=4",), 3),
        (("worker.replicas=4", "disruption.max_unavailable=0"), 4),
        (("worker.replicas=2", "disruption.max_unavailable=5"), 0),
        (("autoscaling.enabled=true", "autoscaling.max_replicas=6", "disruption.max_unavailable=2"), 4),
        (("autoscaling.max_replicas=6", "disruption.max_unavailable=1"), 0),
    ],
)
def test_a_budget_says_how_many_stay_as_a_ray_cluster_has_no_scale(sets: tuple[str, ...], kept: int) -> None:
    found = {k: d["spec"] for k, d in objects("reasoner", *sets).items() if d["kind"] == "PodDisruptionBudget"}
    assert {k.rpartition("-")[2]: spec["minAvailable"] for k, spec in found.items()} == {"head": 0, "worker": kept}
    # Kubernetes takes no maxUnavailable and no share of pods whose owner has no scale.
    assert all(isinstance(spec["minAvailable"], int) and "maxUnavailable" not in spec for spec in found.values())


def test_the_reasoner_has_a_gateway_in_every_pod_and_a_replica_on_every_gpu() -> None:
    found = serve("reasoner", "worker.replicas=2", "worker.gpus=4", profile="round-robin")
    gateways, replicas = found["applications"]
    settings = ReasonerSettings.load(gateways["args"], environ={})
    assert (settings.workers.plain(), settings.gateways, settings.routing) == (8, 2, "round-robin")
    assert gateways["args"] == replicas["args"]
    assert gateways["deployments"][0]["max_replicas_per_node"] == 1
    assert replicas["deployments"][0]["ray_actor_options"]["num_gpus"] == 1
    # Private addresses stay closed, except for the videos of our own Jobs.
    assert settings.media_allow == ("cosmos3-nano-reasoner-smoke:8080", "cosmos3-nano-reasoner-perf:8080")
    assert ReasonerSettings.load(serve("reasoner")["applications"][0]["args"], environ={}).routing == "session-affinity"


def test_where_pods_come_and_go_the_replicas_are_a_range() -> None:
    sets = ("autoscaling.enabled=true", "autoscaling.max_replicas=4", "worker.replicas=2", "worker.gpus=2")
    settings = ReasonerSettings.load(serve("reasoner", *sets)["applications"][0]["args"], environ={})
    assert (settings.workers.plain(), settings.gateways) == ("2:8", 4)
    asleep = ReasonerSettings.load(
        serve("reasoner", *sets, "settings.workers=0:8")["applications"][0]["args"], environ={}
    )
    assert asleep.workers.plain() == "0:8"
    group = cluster("reasoner", *sets, "settings.workers=0:8")["workerGroupSpecs"][0]
    assert group["minReplicas"] == 1, "a gateway wakes the fleet, and lives in a worker pod"
    with pytest.raises(UsageError) as refused:
        serve("reasoner", *sets, "settings.workers=2:9")
    assert (refused.value.stable_code, refused.value.errors[0].field) == ("deploy_bad_value", "settings.workers")


def test_the_guard_has_an_application_while_guardrails_are_on() -> None:
    names = [app["name"] for app in serve("generator")["applications"]]
    assert names == [APP_NAME, "cosmos3_guardrails"]
    (only,) = serve("generator", "settings.guardrails=off")["applications"]
    assert only["args"]["guardrails"] is False


@pytest.mark.parametrize(
    ("service", "text", "code", "field"),
    [
        ("generator", "settings.max_batch=8", "deploy_unknown_key", "settings.max_batch"),
        ("generator", "settings.port=9000", "deploy_unknown_key", "settings.port"),
        ("generator", "settings.guardrails=perhaps", "deploy_bad_value", "settings.guardrails"),
        ("generator", "settings.max_batch_size=0", "deploy_bad_value", "settings.max-batch-size"),
        ("reasoner", "settings.queue_limit=x", "deploy_bad_value", "settings.queue-limit"),
        ("reasoner", "network.egress_cidrs=0.0.0.0/99", "deploy_bad_value", "network.egress_cidrs.0"),
        ("reasoner", "network.private_cidrs=10.0.0.1/8", "deploy_bad_value", "network.private_cidrs.0"),
        ("reasoner", "network.egress_cidrs=everywhere", "deploy_bad_value", "network.egress_cidrs.0"),
        ("reasoner", "batch.schedule=daily", "deploy_bad_value", "batch.schedule"),
        ("reasoner", "network.egress_ports=443/SCTP", "deploy_bad_value", "network.egress_ports.0"),
        ("reasoner", "network.egress_ports=70000", "deploy_bad_value", "network.egress_ports.0"),
        ("reasoner", "head.shm=16Gi", "deploy_bad_value", "head"),
        ("generator", "worker.shm=96Gi", "deploy_bad_value", "worker"),
        ("generator", "worker.gpus=8", "deploy_bad_value", "worker.gpus"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(service: str, text: str, code: str, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        render("kuberay", service=service, sets=[text])
    assert refused.value.stable_code == code
    assert [e.field for e in refused.value.errors] == [field]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "deploy_unknown_service"),
        ({"service": "both"}, "deploy_unknown_service"),
        ({"service": "generator", "profile": "round-robin"}, "deploy_not_in_profile"),
        ({"service": "generator", "sets": ["worker.replicas=2"]}, "deploy_bad_value"),
        ({"service": "reasoner", "profile": "sticky"}, "deploy_unknown_profile"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        render("kuberay", **options)
    assert refused.value.stable_code == code
    with pytest.raises(UsageError):
        render("dynamo", service="reasoner")


def test_an_environment_of_whoever_renders_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = files("generator")
    monkeypatch.setenv("NPA_COSMOS3_RAY_MAX_BATCH_SIZE", "64")
    monkeypatch.setenv("COSMOS3_REASONER_PORT", "nonsense")
    assert files("generator") == before and files("reasoner")


def test_the_revision_is_the_one_that_diffusers_pin_gives() -> None:
    pins = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"{DIFFUSERS_REVISION.replace("-", "==")}"' in pins
    assert KuberayValues().ray_version in pins
    assert applications.PORT == GeneratorSettings().port == ReasonerSettings().port


def test_a_service_that_would_refuse_to_start_is_found_before() -> None:
    (found,) = check([ray_service("generator")][:1])
    assert found.code == "guardrail_revision" and "settings.guardrail_revision" in found.text
    assert check([ray_service("generator", "settings.guardrails=off")]) == []
    (found,) = check([ray_service("generator", "settings.guardrails=off", "settings.parallelism_preset=latency")])
    assert "settings.parallelism_preset" in found.text and "no effect" in found.text


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("max_batch_size: 2", "max_batch: 2", "serve_args"),
        ("max_batch_size: 2", "max_batch_size: 0", "serve_args"),
        ("max_batch_size: 2", "ray_address: elsewhere:6379", "serve_args"),
        ("proxy_location: Disabled", "proxy_location: EveryNode", "serve_proxy"),
        ("applications:", "apps:", "serve_config"),
        ("applications:", "applications: [", "serve_config"),
    ],
)
def test_a_configuration_changed_by_hand_is_found_out(before: str, after: str, code: str) -> None:
    document = ray_service("generator", "settings.guardrails=off", "settings.max_batch_size=2")
    text = document["spec"]["serveConfigV2"]
    assert before in text
    document["spec"]["serveConfigV2"] = text.replace(before, after)
    assert {each.code for each in check([document])} == {code}


def test_the_perf_jobs_can_ask_our_own_service_too() -> None:
    (profile,) = files("reasoner", profile="round-robin")["perf/profiles/kuberay.yaml"]
    assert profile["data"]["COSMOS3_REASONER_ENDPOINT"] == "http://cosmos3-nano-reasoner-serve-svc:8000"
    assert profile["data"]["PROFILE"] == "round-robin" and "COSMOS3_REASONER_TOKEN" not in profile["data"]
    jobs = [f for f in render("dynamo", parts=["perf"]) if f.path in ("perf/smoke.yaml", "perf/perf.yaml")]
    for _service, job in (f.documents for f in jobs):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["envFrom"][0]["configMapRef"]["name"] == profile["metadata"]["name"]
        secret = container["env"][-1]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "cosmos3-token", "key": "token", "optional": True}
        hosts = ReasonerSettings.load(serve("reasoner")["applications"][0]["args"], environ={}).media_allow
        assert f"{job['metadata']['name']}:8080" in hosts
        labels = job["spec"]["template"]["metadata"]["labels"]
        policy = objects("reasoner")["NetworkPolicy/cosmos3-nano-reasoner"]["spec"]
        assert policy["egress"][-1]["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()


@given(st.sampled_from(SERVICES), st.data())
def test_any_setting_renders_or_is_refused_by_name(service: str, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(MODELS[service].model_fields)))
    text = data.draw(
        st.one_of(st.text(max_size=12), st.integers(-2, 99).map(str), st.sampled_from(["on", "a: b", "\x85", "-"]))
    )
    try:
        found = serve(service, f"settings.{field}={text}")
    except UsageError as refused:
        assert refused.stable_code in ("deploy_bad_value", "deploy_unknown_key")
        return
    for app in found["applications"]:
        before = MODELS[service].load(app["args"], environ={})
        assert before == MODELS[service].load(before.model_dump(mode="json"), environ={})
