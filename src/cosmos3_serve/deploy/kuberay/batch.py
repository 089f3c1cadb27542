"""The workflow `cosmos3-ray-batch`: a CPU pod that carries one batch from S3 to S3 through a ready service.

A pod that starts again resumes: the client's journal lies on a claim, and where even that was lost, what the client
claimed at the output location says which batch it was. What no restart can cure (exit code 2) ends the job at once.
"""

from __future__ import annotations

from cosmos3_serve.deploy.kube.base import KubeObject, Meta, PodMeta, labels
from cosmos3_serve.deploy.kube.objects import (
    CronJob,
    CronJobSpec,
    ExitCodes,
    FailurePolicy,
    FailureRule,
    Job,
    JobSpec,
    JobTemplate,
    PodCondition,
    claim_object,
)
from cosmos3_serve.deploy.kube.pod import (
    Container,
    ContainerSecurity,
    EmptyDir,
    EnvSource,
    EnvVar,
    FieldRef,
    Mount,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Resources,
    Volume,
    claim,
    env,
    secret_env,
    shell,
)
from cosmos3_serve.deploy.kuberay.applications import PORT
from cosmos3_serve.deploy.kuberay.ingress import serve_service
from cosmos3_serve.deploy.kuberay.pods import USER, storage_env
from cosmos3_serve.deploy.kuberay.values import KuberayValues, account_of, revision_of
from cosmos3_serve.deploy.placement import placed
from cosmos3_serve.deploy.trust import trust_env, trust_mounts, trust_volumes
from cosmos3_serve.errors import ExitCode

JOURNAL = "/journal"
WEEK_S = 7 * 24 * 3600
# A pod that waits for a node, and one that reads and publishes.
MARGIN_S = 1800

SCRIPT = """set -eu
rc=0
said=$(cosmos3 ray-batch --resume --json --output-path "$OUTPUT_URI" \\
  --expected-revision "$EXPECTED_REVISION") || rc=$?
case "$rc:$said" in
2:*'"no_such_run"'*) ;;
*)
  printf '%s\\n' "$said"
  exit "$rc"
  ;;
esac
cosmos3 ray-health --timeout 30
exec cosmos3 ray-batch --input-path "$INPUT_URI" --output-path "$OUTPUT_URI" \\
  --expected-revision "$EXPECTED_REVISION"
"""


def batch_job(values: KuberayValues, service: str, engine: str) -> list[KubeObject]:
    """The claim and one job. `service`: name of the rendered RayService, unless an endpoint is set."""
    name, spec = values.batch.name, _spec(values, service, engine, values.batch.name, each_run=False)
    job = Job(metadata=Meta(name=name, labels=labels(name, "batch")), spec=spec)
    return [_journal(values, name), job]


def batch_cron(values: KuberayValues, service: str, engine: str) -> list[KubeObject]:
    """The same on a schedule, suspended until an operator resumes it; each run publishes below its own job's name."""
    name = f"{values.batch.name}-cron"
    cron = CronJob(
        metadata=Meta(name=name, labels=labels(values.batch.name, "batch")),
        spec=CronJobSpec(
            schedule=values.batch.schedule,
            suspend=True,
            # One journal, one writer; and a batch that runs late must not be joined by the next one.
            concurrency_policy="Forbid",
            starting_deadline_seconds=3600,
            successful_jobs_history_limit=3,
            failed_jobs_history_limit=3,
            job_template=JobTemplate(
                metadata=PodMeta(labels=labels(values.batch.name, "batch")),
                spec=_spec(values, service, engine, name, each_run=True),
            ),
        ),
    )
    return [_journal(values, name), cron]


def _journal(values: KuberayValues, name: str) -> KubeObject:
    return claim_object(
        f"{name}-journal",
        size=values.batch.journal_size,
        mode="ReadWriteOnce",
        storage_class=None,  # the cluster's own default: one pod writes it
        labels=labels(values.batch.name, "batch"),
    )


def _spec(values: KuberayValues, service: str, engine: str, name: str, *, each_run: bool) -> JobSpec:
    batch = values.batch
    main = Container(
        name="client",
        image=values.images.client,
        command=shell(SCRIPT),
        env=_env(values, service, engine, each_run=each_run),
        resources=Resources(requests={"cpu": "2", "memory": "4Gi"}, limits={"memory": "4Gi"}),
        security_context=ContainerSecurity(read_only_root_filesystem=True),
        volume_mounts=[
            Mount(name="journal", mount_path=JOURNAL),
            Mount(name="tmp", mount_path="/tmp"),
            *trust_mounts(values.ca_bundle),
        ],
    )
    rules = [
        # The empty list is for Kubernetes 1.28, whose schema demands it.
        FailureRule(
            action="FailJob",
            on_exit_codes=ExitCodes(container_name="client", values=[ExitCode.INPUT]),
            on_pod_conditions=[],
        ),
        # A node that is drained or lost is no failed attempt.
        FailureRule(action="Ignore", on_pod_conditions=[PodCondition(type="DisruptionTarget")]),
    ]
    return JobSpec(
        backoff_limit=batch.attempts,
        # Without a limit the client derives its own from the samples, a week at most.
        active_deadline_seconds=(batch.attempts + 1) * batch.timeout_s + MARGIN_S if batch.timeout_s else WEEK_S,
        ttl_seconds_after_finished=WEEK_S,
        pod_failure_policy=FailurePolicy(rules=rules),
        template=PodTemplate(
            metadata=PodMeta(labels=labels(batch.name, "batch")),
            spec=PodSpec(
                restart_policy="Never",
                automount_service_account_token=False,
                termination_grace_period_seconds=60,
                security_context=PodSecurity(run_as_user=USER, run_as_group=USER, fs_group=USER),
                containers=[main],
                volumes=[
                    claim("journal", f"{name}-journal"),
                    Volume(name="tmp", empty_dir=EmptyDir()),
                    *trust_volumes(values.ca_bundle),
                ],
                service_account_name=account_of(service, values),
                **placed(values.pods, batch),
            ),
        ),
    )


def _env(values: KuberayValues, service: str, engine: str, *, each_run: bool) -> list[EnvVar]:
    batch, secrets = values.batch, values.secrets
    fixed = {
        "NPA_COSMOS3_RAY_ENDPOINT": batch.endpoint or f"http://{serve_service(service)}:{PORT}",
        "EXPECTED_REVISION": batch.expected_revision or revision_of(engine),
        "INPUT_URI": batch.input_uri,
        "COSMOS3_CLIENT_JOURNAL_DIR": JOURNAL,
        "COSMOS3_CLIENT_SPOOL_BYTES": str(batch.spool_bytes),
        "HOME": "/tmp",
    }
    if batch.timeout_s:
        fixed["COSMOS3_CLIENT_TIMEOUT_S"] = str(batch.timeout_s)
    found = env(**fixed)
    found.append(secret_env("NPA_COSMOS3_RAY_TOKEN", secrets.token, batch.token_key))
    found += [*storage_env(values, optional=False), *trust_env(values.ca_bundle)]
    if each_run:
        job = EnvSource(field_ref=FieldRef(field_path="metadata.labels['batch.kubernetes.io/job-name']"))
        # A variable may name those before it: every attempt of one run has the same place, every run another.
        found += [
            EnvVar(name="JOB_NAME", value_from=job),
            EnvVar(name="OUTPUT_URI", value=f"{batch.output_uri}$(JOB_NAME)/"),
        ]
    else:
        found += env(OUTPUT_URI=batch.output_uri)
    return found
