"""docs/npa-names.md: what it says is here is here, and nothing that NPA's users look for is missing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.commands import parse

from cosmos3_serve.bench.aiperf import VERSION as AIPERF
from cosmos3_serve.contract.wire import DIFFUSERS_REVISION, FRAMEWORK_REVISION, PROVENANCE_SCHEMA
from cosmos3_serve.deploy.dynamo.values import DynamoValues
from cosmos3_serve.deploy.kuberay.values import KuberayValues

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "npa-names.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")] + [""]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| there", "| ---"))
]
THERE = "\n".join(row[0] for row in ROWS)
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
# What an operator of NPA's skill, or a reader of NVIDIA's recipe, comes with.
LOOKED_FOR = (
    "npa/.venv/bin/npa", "npa/tests/e2e/test_cosmos3_ray_batch_live_e2e.py", "workflows/testing/cosmos3-ray-batch.yaml",
    "health preflight", "health access", "golden-eval show", "ray-serve --world-size 1 --max-batch-size 4", "ray-batch",
    "--batch-wait-timeout-s", "--parallelism-preset", "--guardrails/--no-guardrails", "/outputs", "NLTK_DATA",
    "NPA_COSMOS3_RAY_TOKEN", "HF_TOKEN", "NPA_COSMOS3_RAY_ALLOWED_S3_ROOTS", "NPA_INTEGRATION_E2E",
    "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI", "GET /ready", "GET /health", "/system-info", "provenance.json", ".rrd",
    "npa.cosmos3.ray-serve.provenance.v1", "Ray 2.58", "Torch 2.13", "5e67049cd94acb667786f1e6dd0dab821cb90c97",
    "X-Dynamo-Session-ID", "NGC_API_KEY", "ngc-api-secret", "NIM_MODEL_SIZE", "model-cache/model-download.yaml",
    "agg-h200-round-robin/deploy.yaml", "agg-h200-session-affinity/deploy.yaml", "perf/smoke.yaml", "NIM 2.1.0",
)  # fmt: skip


@pytest.mark.parametrize("name", LOOKED_FOR)
def test_nothing_that_is_looked_for_is_missing(name: str) -> None:
    assert name in THERE


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_to_be_here_is_here(name: str) -> None:
    if name == "npa":
        assert '\nnpa = "' in (ROOT / "pyproject.toml").read_text()
    elif name.startswith(("cosmos3 ", "npa ")):
        assert parse(shlex.split(name))
    elif name.startswith(("GET ", "POST ")):
        method, _, path = name.partition(" ")
        found = re.findall(rf'Route\("{re.escape(path)}"(.*)\)', SOURCES)
        assert found and any(f'"{method}"' in each or (method == "GET" and "methods" not in each) for each in found)
    elif name.startswith("nvcr.io/"):
        images = DynamoValues().images
        assert name in (images.frontend, images.worker)
    elif re.fullmatch(r"[A-Z]+(_[A-Z0-9]+)+", name):
        tests = (ROOT / "tests" / "live" / "test_ray_batch_live.py").read_text()
        assert f'"{name}"' in SOURCES or f'"{name}"' in tests or f"{name}=" in SOURCES
    elif name.startswith("X-"):
        assert f'"{name}"' in SOURCES
    elif name in (FRAMEWORK_REVISION, PROVENANCE_SCHEMA):
        pass
    else:
        assert (ROOT / name).is_file(), "a path, unless it is one of the kinds above"


def test_the_versions_are_the_pinned_ones() -> None:
    here = {row[0].partition(" ")[0]: row[1] for row in ROWS}
    assert here["Ray"] == f"Ray {KuberayValues().ray_version}" and f"ray=={KuberayValues().ray_version}" in pins()
    assert here["Torch"].replace("Torch ", "torch==") in pins()
    assert here["AIPerf"] == f"AIPerf {AIPERF}"
    assert f"`{DIFFUSERS_REVISION}`" in PAGE
    assert f"workers hold {DynamoValues().worker.runtime_version}" in PAGE


def pins() -> list[str]:
    return (ROOT / "constraints.txt").read_text().splitlines()


def test_the_workflow_is_said_to_be_a_job_wherever_it_is_looked_for() -> None:
    path = "workflows/testing/cosmos3-ray-batch.yaml"
    assert "Job" in (ROOT / path).read_text()
    row = next(row for row in ROWS if path in row[0])
    assert "Kubernetes Job" in row[2]
    for page in ("README.md", "recipes/cosmos3-generator/README.md", "docs/operations.md", "workflows/README.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "npa-names.md" in text, page
        if path in text:
            assert "Kubernetes Job" in text, page
