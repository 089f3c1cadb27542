"""What a recovery says: the qualification report, the refusal, and `provenance.json` with status `recovered`."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cosmos3_serve import __version__
from cosmos3_serve.client.record import IMAGE_ENV
from cosmos3_serve.client.recovery.first_attempt import Origin
from cosmos3_serve.client.recovery.qualify import Finding, Qualified
from cosmos3_serve.contract.provenance import MediaProof, Provenance
from cosmos3_serve.contract.records import JsonObject, SampleRecord, SampleState
from cosmos3_serve.contract.recovery import Recovery
from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND
from cosmos3_serve.errors import FieldError, Refusal
from cosmos3_serve.publication.layout import PROVENANCE, published_uri

PARTIAL = "native_batch_partial"
THROUGHPUT_NOTE = (
    "qualification (reading, hashing and decoding the retained files) and publication are measured by the recovering"
    " client; the first attempt's own times are not known and not in them."
)
REMEDIES = {
    "native_wrong_seed": "name the outputs that this request made, or the request that made these outputs",
    "native_wrong_name": "each sample's folder must hold its own records",
    "native_foreign_request": "name the copy of this very request",
    "native_file_missing": "copy the request's whole directory again",
    "native_media_altered": "copy it again and compare with the hashes made where it lay",
    "native_symlink": "copy with links resolved (cp -L, rsync -L), so that files are files",
    "native_extra_file": "remove it from the copy if it is no result",
    "native_media_invalid": "copy it again; if the original does not decode either, the sample is lost",
    PARTIAL: "publish the others with --allow-partial",
}
Source = Literal["service_ledger", "output_directory", "output_prefix"]


def refusal(found: Qualified, names: Sequence[str], *, allow_partial: bool) -> Refusal | None:
    """Why nothing is published, or None. The first finding gives the code; all are listed."""
    if found.findings:
        first = found.findings[0]
        more = f" (and {len(found.findings) - 1} more findings)" if len(found.findings) > 1 else ""
        return Refusal(
            f"the retained outputs do not qualify: {told(first)}{more}",
            remedy=REMEDIES.get(first.code, ""),
            errors=[_error(finding, names) for finding in found.findings],
            code=first.code,
        )
    if found.missing and (not allow_partial or not found.results):
        return Refusal(
            f"{len(found.missing)} of {len(names)} samples have no retained result",
            remedy=REMEDIES[PARTIAL] if found.results else "there is nothing to publish",
            errors=[_error(finding, names) for finding in found.missing.values()],
            code=PARTIAL,
        )
    return None


def told(finding: Finding) -> str:
    """`sample 'a', vision.jpg: it is a link`."""
    where = ", ".join(filter(None, [finding.sample and f"sample {finding.sample!r}", finding.file]))
    return f"{where}: {finding.message}" if where else finding.message


def _error(finding: Finding, names: Sequence[str]) -> FieldError:
    field = f"samples[{names.index(finding.sample)}]" if finding.sample in names else "request"
    return FieldError(field, f"{finding.code}: {told(finding)}", REMEDIES.get(finding.code, ""))


def report(
    origin: Origin,
    found: Qualified,
    recovery: Recovery,
    media: Sequence[MediaProof],
    *,
    output_path: str,
    partial: bool,
) -> dict[str, Any]:
    """The qualification report: what `--dry-run` prints."""
    names = origin.request.names
    no = refusal(found, names, allow_partial=partial)
    shown = {proof.path: proof.model_dump(exclude={"path"}, exclude_none=True) for proof in media}
    findings, natives = defaultdict(list), defaultdict(list)
    for finding in found.findings:
        findings[finding.sample].append(finding)
    for native in recovery.natives:
        natives[native.sample].append(native)
    samples = []
    for name in names:
        mine = findings[name]
        result, lost = found.results.get(name), found.missing.get(name)
        state = "refused" if mine else "qualified" if result else "missing"
        samples.append(
            {
                "name": name,
                "state": state,
                "mode": result.args.get("model_mode") if result else None,
                "seed": result.args.get("seed") if result else None,
                "num_frames": result.args.get("num_frames") if result else None,
                "files": [
                    native.model_dump(exclude={"sample"}) | {"decoded": shown.get(native.path)}
                    for native in natives[name]
                ],
                "findings": [_shown(finding) for finding in ([lost] if lost else mine)],
            }
        )
    return {
        "status": "refused" if no else "qualified",
        "code": no.stable_code if no else None,
        "request_id": origin.request.request_id,
        "output_path": output_path,
        "samples": samples,
        "findings": [_shown(finding) for finding in found.findings if finding.sample not in names],
        "recovery": recovery.model_dump(mode="json", exclude={"natives"}),
    }


def _shown(finding: Finding) -> dict[str, str]:
    return {"code": finding.code, "file": finding.file, "message": finding.message}


def recovery_record(origin: Origin, found: Qualified, source: Source, location: str) -> Recovery:
    return Recovery(
        source=source,
        location=location,
        request_from=origin.source,
        response="none" if found.response is None else "ledger",
        native_records=found.native_records,
        natives=found.natives,
        ignored=found.ignored,
        first_attempt=origin.attempt,
    )


def provenance(
    origin: Origin,
    found: Qualified,
    recovery: Recovery,
    *,
    run_id: str,
    output_path: str,
    endpoint: str,
    media: Sequence[MediaProof],
    phases: Mapping[str, float],
    environ: Mapping[str, str] | None = None,
) -> Provenance:
    """The record of a recovered publication; what nobody recorded stays None."""
    environ = os.environ if environ is None else environ
    names, uri = origin.request.names, published_uri(output_path)
    response = found.bound.response if found.bound and found.response is not None else None
    args = {name: result.args for name, result in found.results.items()}
    seeds = {name: args.get(name, {}).get("seed") for name in names}
    return Provenance(
        status="recovered",
        run_id=run_id,
        endpoint=endpoint or (origin.attempt.endpoint if origin.attempt else ""),
        input_path=origin.input_path,
        output_path=output_path,
        model=origin.request.model,
        sample_names=names,
        batch_size=len(names),
        backend=(response.backend or FRAMEWORK_BACKEND) if response else None,
        request_id=origin.request.request_id,
        guardrails=response.guardrails if response else None,
        max_batch_size=response.max_batch_size if response else None,
        framework_revision=response.framework_revision if response else None,
        server_source_revision=response.server_source_revision if response else None,
        artifacts=found.artifacts,
        structured_outputs=_outputs(found, names),
        runtime_image=environ.get(IMAGE_ENV, ""),
        published_uri=uri,
        provenance_uri=uri.rstrip("/") + "/" + PROVENANCE,
        engine=response.engine if response else None,
        checkpoint=response.checkpoint if response else None,
        weights=(response.weights if response else None) or "unknown",
        seeds=seeds,
        samples=[found.records.get(name) or _record(found, name, seeds[name]) for name in names],
        missing=[name for name in names if name in found.missing],
        phases={name: round(seconds, 3) for name, seconds in phases.items()},
        throughput_note=THROUGHPUT_NOTE,
        media=sorted(media, key=lambda proof: proof.path),
        request_sha256=hashlib.sha256(origin.body).hexdigest(),
        response_sha256="" if found.response is None else hashlib.sha256(found.response).hexdigest(),
        client_version=__version__,
        recovery=recovery,
    )


def _outputs(found: Qualified, names: Sequence[str]) -> list[JsonObject]:
    return [found.results[name].outputs for name in names if name in found.results]


def _record(found: Qualified, name: str, seed: int | None) -> SampleRecord:
    """What the files alone say of a sample: neither guardrails nor times."""
    lost = found.missing.get(name)
    return SampleRecord(
        name=name,
        state=SampleState.FAILED if lost else SampleState.SUCCEEDED,
        code=lost.code if lost else None,
        message=lost.message if lost else None,
        seed=seed,
    )
