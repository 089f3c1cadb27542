"""What the tests of manifests share: renderings with every placeholder set, and kubectl where it is present."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import yaml

from cosmos3_serve.deploy.dynamo import overlay
from cosmos3_serve.deploy.kuberay.values import SERVICES
from cosmos3_serve.deploy.manifest import ManifestFile
from cosmos3_serve.deploy.render import render

ROOT = Path(__file__).parents[2]
# Made up; nothing pulls them.
DYNAMO_SET = (
    "images.client=registry.example/cosmos3-client:0.1.0",
    "cache.storage_class=shared-files",
)
KUBERAY_SET = (
    "images.service=registry.example/cosmos3-service@sha256:0000",
    "images.client=registry.example/cosmos3-client@sha256:0000",
    "cache.storage_class=shared-files",
    "outputs.storage_class=shared-files",
    "batch.input_uri=s3://bucket/batch.json",
    "batch.output_uri=s3://bucket/outputs/",
    "ingress.host=cosmos3.example",
)
# Every wish about nodes at once, for all pods and for one role.
PLACED = (
    "pods.image_pull_secrets=mirror,second",
    "pods.tolerations=dedicated=cosmos:NoSchedule,spot",
    "pods.node_affinity=topology.kubernetes.io/zone in (a, b); !spot",
    "pods.node_selector.pool=cosmos",
    "pods.priority_class=batch-low",
    "worker.priority_class=serving-high",
    "worker.runtime_class=nvidia",
    "worker.tolerations=nvidia.com/gpu:NoSchedule",
    "worker.node_affinity=nvidia.com/gpu.memory",
)
# A made-up commit; guardrails stay on.
GENERATOR_SET = (*KUBERAY_SET, "settings.guardrail_revision=0123456789012345678901234567890123456789")


def everything() -> list[ManifestFile]:
    """What both targets render with every placeholder set, the overlay included."""
    overlay = ("overlay.ngc_api_key=true", "overlay.image_pull_secret=registry-pull-secret")
    found = render("dynamo", sets=(*DYNAMO_SET, *overlay))
    for service in SERVICES:
        found += render("kuberay", service=service, sets=GENERATOR_SET if service == "generator" else KUBERAY_SET)
    return found


def load(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def kustomize(folder: Path) -> list[dict[str, Any]]:
    """The overlay as `kubectl kustomize` builds it; without kubectl as its patches say, with a warning."""
    program = shutil.which("kubectl")
    if program is None:
        warnings.warn(
            f"kubectl is not here: {folder.name} was built by our own RFC 6902, not by Kustomize", stacklevel=2
        )
        return built_by_hand(folder)
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return load(done.stdout)


def built_by_hand(folder: Path) -> list[dict[str, Any]]:
    """Resources and JSON patches alone: what our overlays and NVIDIA's are made of. Asserts that there is no more."""
    (kustomization,) = load((folder / "kustomization.yaml").read_text())
    assert set(kustomization) <= {"apiVersion", "kind", "resources", "patches"}
    found = [d for name in kustomization["resources"] for d in load((folder / name).read_text())]
    for patch in kustomization.get("patches", []):
        assert set(patch["target"]) == {"group", "kind"}
        for number, document in enumerate(found):
            group = document["apiVersion"].rpartition("/")[0]
            if (group, document["kind"]) == (patch["target"]["group"], patch["target"]["kind"]):
                operations = yaml.safe_load(patch["patch"])
                assert {each["op"] for each in operations} == {"add"}
                found[number] = overlay.apply(document, operations)
    return found
