"""The workflow cosmos3-ray-batch: its shell is run here with a double of the client."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.manifests import KUBERAY_SET, ROOT

from cosmos3_serve.deploy.check import check
from cosmos3_serve.deploy.kuberay.batch import SCRIPT
from cosmos3_serve.deploy.render import render

CLIENT = """#!/bin/sh
# A double of our client: notes how it was called, answers as the test says.
echo "$*" >> "$CALLS"
case "$*" in
*--resume*) cat "$ANSWER"; exit "$RESUME_CODE" ;;
ray-health*) exit "${HEALTH_CODE:-0}" ;;
*) echo published; exit "${SUBMIT_CODE:-0}" ;;
esac
"""
NO_RUN = '{"code": "no_such_run", "exit_code": 2}'


def documents(*sets: str) -> dict[str, dict[str, Any]]:
    found = render("kuberay", service="generator", sets=(*KUBERAY_SET, *sets), parts=["batch"])
    return {d["kind"]: d for f in found for d in f.documents}


def run(tmp_path: Path, answer: str, code: int, **environ: str) -> tuple[int, str, list[str]]:
    client = tmp_path / "cosmos3"
    client.write_text(CLIENT)
    client.chmod(0o755)
    (tmp_path / "answer").write_text(answer)
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "ANSWER": str(tmp_path / "answer"),
        "RESUME_CODE": str(code), "OUTPUT_URI": "s3://b/out/", "INPUT_URI": "s3://b/in.json",
        "EXPECTED_REVISION": "r1", **environ,
    }  # fmt: skip
    done = subprocess.run(
        ["/bin/sh", "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=30, check=False
    )
    calls = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    return done.returncode, done.stdout, calls


def test_a_first_pod_submits_after_the_service_said_that_it_is_ready(tmp_path: Path) -> None:
    code, said, calls = run(tmp_path, NO_RUN, 2)
    assert (code, said) == (0, "published\n")
    assert [call.split()[:2] for call in calls] == [
        ["ray-batch", "--resume"], ["ray-health", "--timeout"], ["ray-batch", "--input-path"],
    ]  # fmt: skip
    assert "--output-path s3://b/out/ --expected-revision r1" in calls[2]


def test_a_later_pod_resumes_and_submits_nothing(tmp_path: Path) -> None:
    code, said, calls = run(tmp_path, '{"status": "completed"}', 0)
    assert (code, said, len(calls)) == (0, '{"status": "completed"}\n', 1)


@pytest.mark.parametrize("code", [2, 3, 4, 5, 130])
def test_a_resume_that_fails_keeps_its_exit_code_and_is_not_submitted_anew(tmp_path: Path, code: int) -> None:
    found, said, calls = run(tmp_path, '{"code": "another"}', code)
    assert (found, said, len(calls)) == (code, '{"code": "another"}\n', 1)


def test_a_service_that_is_not_ready_is_not_asked(tmp_path: Path) -> None:
    code, _, calls = run(tmp_path, NO_RUN, 2, HEALTH_CODE="3")
    assert code == 3 and len(calls) == 2


def test_what_no_restart_cures_ends_the_job_and_the_rest_is_tried_again() -> None:
    job = documents()["Job"]["spec"]
    fail, ignore = job["podFailurePolicy"]["rules"]
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [2])
    assert (ignore["action"], ignore["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert job["template"]["spec"]["restartPolicy"] == "Never" and job["backoffLimit"] > 0
    assert fail["onExitCodes"]["containerName"] == job["template"]["spec"]["containers"][0]["name"]


def test_it_needs_no_gpu_and_keeps_its_journal() -> None:
    found = documents()
    for pod, claim in (
        (found["Job"]["spec"]["template"]["spec"], "cosmos3-ray-batch-journal"),
        (found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"], "cosmos3-ray-batch-cron-journal"),
    ):
        (container,) = pod["containers"]
        assert "nvidia.com/gpu" not in str(pod)
        values = {v["name"]: v.get("value") for v in container["env"]}
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        (volume,) = [v for v in pod["volumes"] if v["name"] == mounts[values["COSMOS3_CLIENT_JOURNAL_DIR"]]]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert int(values["COSMOS3_CLIENT_SPOOL_BYTES"]) < 20 * 1024**3
        sources = {v["name"]: v["valueFrom"] for v in container["env"] if "valueFrom" in v}
        assert sources["NPA_COSMOS3_RAY_TOKEN"]["secretKeyRef"] == {"name": "cosmos3-token", "key": "token"}


def test_the_template_on_a_schedule_is_suspended_and_gives_each_run_a_place_of_its_own() -> None:
    cron = documents("batch.schedule=15 2 * * 1")["CronJob"]["spec"]
    assert cron["suspend"] is True and cron["concurrencyPolicy"] == "Forbid" and cron["schedule"] == "15 2 * * 1"
    env = cron["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["env"]
    names = [v["name"] for v in env]
    assert names.index("JOB_NAME") < names.index("OUTPUT_URI")  # Kubernetes puts in only what stands before
    assert env[names.index("OUTPUT_URI")]["value"] == "s3://bucket/outputs/$(JOB_NAME)/"
    assert env[names.index("JOB_NAME")]["valueFrom"]["fieldRef"]["fieldPath"].endswith(
        "['batch.kubernetes.io/job-name']"
    )


def test_another_service_and_revision_may_be_named() -> None:
    job = documents("batch.endpoint=http://elsewhere:8000", "batch.expected_revision=r2")["Job"]
    values = {v["name"]: v.get("value") for v in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert (values["NPA_COSMOS3_RAY_ENDPOINT"], values["EXPECTED_REVISION"]) == ("http://elsewhere:8000", "r2")
    default = {
        v["name"]: v.get("value") for v in documents()["Job"]["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert default["NPA_COSMOS3_RAY_ENDPOINT"] == "http://cosmos3-generator-serve-svc:8000"


def test_the_workflows_path_holds_the_same_job() -> None:
    committed = (ROOT / "workflows/testing/cosmos3-ray-batch.yaml").read_text()
    assert committed == (ROOT / "recipes/cosmos3-generator/batch/cosmos3-ray-batch.yaml").read_text()


def test_a_job_without_input_is_refused_by_the_check() -> None:
    found = render("kuberay", service="generator", parts=["batch"])
    fields = {each.field for each in check([d for f in found for d in f.documents])}
    assert any(".env.2.value" in field for field in fields), fields
