"""The files of the Dynamo target, under the paths that NVIDIA's recipe uses."""

from __future__ import annotations

from collections.abc import Sequence

from cosmos3_serve.deploy.dynamo.cache import cache_claim, download_job
from cosmos3_serve.deploy.dynamo.graph import graph
from cosmos3_serve.deploy.dynamo.overlay import kustomization
from cosmos3_serve.deploy.dynamo.perf import perf, perf_profile, smoke
from cosmos3_serve.deploy.dynamo.values import DynamoValues, Profile
from cosmos3_serve.deploy.manifest import ManifestFile, file
from cosmos3_serve.errors import UsageError

COMMAND = "cosmos3 deploy render --target dynamo"


def recipe(values: DynamoValues, profiles: Sequence[Profile]) -> list[ManifestFile]:
    """
    Raises:
        UsageError: code `deploy_not_in_profile`: an affinity value without its profile.
    """
    if "session-affinity" not in profiles and values.affinity != type(values.affinity)():
        raise UsageError(
            "affinity.* does nothing in the profile round-robin: it has no session-affinity flag",
            code="deploy_not_in_profile",
            remedy="leave it out, or --profile session-affinity",
        )
    files = [
        file("model-cache/model-cache.yaml", "model-cache", [cache_claim(values)], COMMAND),
        file("model-cache/model-download.yaml", "model-cache", [download_job(values)], COMMAND),
    ]
    for profile in profiles:
        command = f"{COMMAND} --profile {profile}"
        folder = f"vllm/agg-h200-{profile}"
        deploy = file(f"{folder}/deploy.yaml", "deploy", [graph(values, profile)], command)
        files.append(deploy)
        if values.overlay.asked:
            # Kustomize reads nothing above its own folder: the overlay has a copy of what it patches.
            files += [
                ManifestFile(f"overlays/{profile}/deploy.yaml", "overlay", deploy.documents, command),
                ManifestFile(f"overlays/{profile}/kustomization.yaml", "overlay", [kustomization(values)], command),
            ]
        files.append(file(f"perf/profiles/{profile}.yaml", "perf", [perf_profile(values, profile)], command))
    files += [
        file("perf/smoke.yaml", "perf", smoke(values), COMMAND),
        file("perf/perf.yaml", "perf", perf(values), COMMAND),
    ]
    return files
