"""The workflow's shell with the real client over S3 that fails for a moment: only wrong input ends the job (exit 2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.baseline_server import PIN
from support.flaky import Fault, FlakyProxy, Plan
from support.ledger_server import LedgerFaults, LedgerServer
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.deploy.kuberay.batch import SCRIPT
from cosmos3_serve.errors import ExitCode

SAMPLE = {"name": "a", "model_mode": "text2image", "prompt": "p", "seed": 17, "resolution": "256"}


@dataclass
class Pods:
    """Pods of one job; each has an empty disk, as after the loss of its node and claim."""

    folder: Path
    server: LedgerServer
    s3: LocalS3
    bucket: str
    started: int = 0

    def run(self, plan: Plan) -> tuple[int, str]:
        self.started += 1
        pod = self.folder / f"pod-{self.started}"
        pod.mkdir()
        (pod / "cosmos3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cosmos3_serve.cli.main "$@"\n')
        (pod / "cosmos3").chmod(0o755)
        with FlakyProxy(self.s3.endpoint, plan) as proxy:
            environ = {
                **{key: value for key, value in os.environ.items() if key in ("PYTHONPATH", "VIRTUAL_ENV", "HOME")},
                **self.s3.environ,
                "PATH": f"{pod}:/usr/bin:/bin",
                "AWS_ENDPOINT_URL": proxy.url,
                "NPA_COSMOS3_RAY_ENDPOINT": self.server.endpoint,
                "NPA_COSMOS3_RAY_TOKEN": self.server.token,
                "COSMOS3_CLIENT_JOURNAL_DIR": str(pod / "journal"),
                "OUTPUT_URI": f"s3://{self.bucket}/out/",
                "INPUT_URI": f"s3://{self.bucket}/batch.json",
                "EXPECTED_REVISION": PIN,
            }
            done = subprocess.run(["/bin/sh", "-c", SCRIPT], env=environ, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def pods(s3_server: LocalS3, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pods]:
    bucket = f"pods-{len(request.node.name)}"  # another for each test
    s3_server.create_bucket(bucket)
    boto(s3_server.environ).put_object(Bucket=bucket, Key="batch.json", Body=json.dumps([SAMPLE]).encode())
    with LedgerServer(tmp_path / "server", faults=LedgerFaults()) as server:
        yield Pods(tmp_path, server, s3_server, bucket)


def test_passing_conflicts_and_late_objects_do_not_end_the_job(pods: Pods) -> None:
    def passing(method: str, target: str, nth: int) -> Fault | None:
        if nth or "/out/" not in target or ".cosmos3-probes" in target:
            return None
        return {"PUT": Fault.CONFLICT, "GET": Fault.NOT_FOUND if "vision" in target else None}.get(method)

    code, said = pods.run(passing)
    assert code == ExitCode.DONE, said
    assert list(pods.server.generated.values()) == [1]
    assert "out/provenance.json" in keys_of(pods.s3.environ, pods.bucket)


def test_a_pod_that_storage_failed_is_continued_by_the_next_from_the_claim_alone(pods: Pods) -> None:
    code, said = pods.run(
        lambda method, target, nth: Fault.ERROR_500 if method == "PUT" and "vision" in target else None
    )
    assert code == ExitCode.INCOMPLETE, said
    code, said = pods.run(lambda method, target, nth: None)
    assert code == ExitCode.DONE, said
    assert list(pods.server.generated.values()) == [1], "the samples were not generated again"
    assert len(pods.server.batches) == 1
