"""A client written only from the public contract (docs/contract.md 3 and 4), independent of the package.

It is what an existing installation would run against our service: one blocking POST, every rule of 5.2 in order, whole
downloads, provenance. The expected framework revision is a parameter because the pin belongs to the framework engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

PIN = "5e67049cd94acb667786f1e6dd0dab821cb90c97"
BACKEND = "cosmos-framework-native-ray-serve"
SCHEMA, PROVENANCE = "npa.cosmos3.ray-serve.batch.v1", "npa.cosmos3.ray-serve.provenance.v1"
HINTS = ("edge", "blur", "depth", "seg", "wsm")
MODES = frozenset(
    [
        "text2image",
        "text2video",
        "image2image",
        "image2video",
        "video2video",
        "audio_image2video",
        "forward_dynamics",
        "inverse_dynamics",
        "wam",
        "reasoner",
    ]
)
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class BaselineClientError(RuntimeError):
    """Anything that keeps the batch from being published."""


def need(condition: bool, text: str) -> None:
    if not condition:
        raise BaselineClientError(text)


def safe(text: Any) -> bool:
    return isinstance(text, str) and SAFE.fullmatch(text) is not None


def integer(value: Any, least: int | None = None) -> bool:
    return type(value) is int and (least is None or value >= least)


def mode_of(sample: dict[str, Any]) -> Any:
    if sample.get("model_mode") is not None:
        return sample["model_mode"]
    vision = sample.get("vision_path")
    source = "text"
    if vision is not None:
        need(isinstance(vision, str), "vision_path must be a string")
        key = unquote(urlsplit(vision).path) if vision.startswith("s3://") else vision
        suffix = key.rsplit(".", 1)[-1].lower() if "." in key else ""
        need(suffix in ("png", "jpg", "jpeg", "webp", "mp4"), "unrecognized vision extension")
        source = "video" if suffix == "mp4" else "image"
    return f"{source}2{'image' if sample.get('num_frames') == 1 else 'video'}"


def hints_of(sample: dict[str, Any]) -> set[str]:
    return {hint for hint in HINTS if sample.get(hint) is not None}


def wants_image(sample: dict[str, Any]) -> bool:
    if sample.get("num_frames") is not None:
        return bool(sample["num_frames"] == 1)
    if hints_of(sample) == {"wsm"}:
        return False
    return mode_of(sample) in ("text2image", "image2image", "reasoner")


def prepare(text: str) -> dict[str, Any]:
    """The request to POST, checked (section 4, steps 1 and 2)."""
    body = json.loads(text)
    body = {"samples": body} if isinstance(body, list) else body
    need(isinstance(body, dict) and isinstance(body.get("samples"), list), "invalid Cosmos3 Ray batch")
    request = {
        "samples": body["samples"],
        "model": body.get("model", "Cosmos3-Nano"),
        "request_id": body.get("request_id", ""),
    }
    need(request["model"] == "Cosmos3-Nano", "custom models are not supported")
    need(request["request_id"] == "" or safe(request["request_id"]), "invalid request id")
    names = [sample.get("name") for sample in request["samples"]]
    need(bool(names) and all(map(safe, names)) and len(set(names)) == len(names), "invalid Cosmos3 Ray batch")
    for sample in request["samples"]:
        need(sample.get("defaults_file") is None, "defaults_file is not supported")
        need(sample.get("num_outputs") in (None, 1), "num_outputs must be 1")
        for key in ("seed", "num_frames"):
            need(sample.get(key) is None or integer(sample[key]), "invalid numeric Cosmos3 sample overrides")
        mode_of(sample)
    request["request_id"] = request["request_id"] or uuid.uuid4().hex
    return request


def bind(request: dict[str, Any], response: Any, revision: str) -> dict[str, str]:
    """Every rule of section 5.2; returns the declared files as path -> sample."""
    samples = {sample["name"]: sample for sample in request["samples"]}
    need(response.get("schema_version") == SCHEMA, "unsupported schema")
    for key, kind in (
        ("request_id", str),
        ("model", str),
        ("outputs", list),
        ("artifacts", list),
        ("guardrails", bool),
        ("framework_revision", str),
    ):
        need(isinstance(response.get(key), kind), f"{key} has the wrong type")
    need(integer(response.get("batch_size"), 1) and integer(response.get("max_batch_size"), 1), "sizes")
    need(re.fullmatch(r"[0-9a-f]{40}", str(response.get("server_source_revision"))) is not None, "source revision")
    need(response["model"] == request["model"], "another model")
    need(response["request_id"] == request["request_id"], "another request")
    need(response["framework_revision"] == revision, "another framework revision")
    need(response["batch_size"] == len(samples) == len(response["outputs"]), "batch size")
    seen: set[str] = set()
    files: dict[str, str] = {}
    for result in response["outputs"]:
        args = result["args"]
        name = args.get("name")
        need(isinstance(name, str) and name in samples and name not in seen, "unexpected sample")
        seen.add(name)
        _bind_sample(samples[name], result, request["request_id"], files)
    declared: dict[str, str] = {}
    for artifact in response["artifacts"]:
        path = artifact["path"]
        _path(path, request["request_id"], artifact["sample"])
        need(path not in declared, "artifact twice")
        need(integer(artifact["bytes"], 1), "artifact size")
        need(re.fullmatch(r"[0-9a-f]{64}", artifact["sha256"]) is not None, "artifact hash")
        declared[path] = artifact["sample"]
    need(declared == files, "artifacts do not cover the declared files")
    return files


def _bind_sample(sample: dict[str, Any], result: dict[str, Any], request_id: str, files: dict[str, str]) -> None:
    args, name = result["args"], sample["name"]
    need(result["status"] == "success", f"sample {name} is {result['status']}: {result.get('message')}")
    mode, wanted = args.get("model_mode"), mode_of(sample)
    need(type(mode) is type(wanted) and mode == wanted, "another mode")
    if sample.get("seed") is not None:
        need(type(args.get("seed")) is int and args["seed"] == sample["seed"], "another seed")
    need(mode in MODES, "unknown mode")
    need(integer(args.get("num_frames"), 1), "num_frames")
    hints = hints_of(args)
    need(hints == hints_of(sample), "other hints")
    text, image = mode == "reasoner" and not hints, args["num_frames"] == 1
    if not text:
        need(wants_image(sample) == image, "another category")
    need(isinstance(result["outputs"], list) and bool(result["outputs"]), "no outputs")
    own: set[str] = set()
    for output in result["outputs"]:
        need(isinstance(output["content"], dict) and bool(output["files"]), "empty output")
        for path in output["files"]:
            _path(path, request_id, name)
            need(path not in files, "file twice")
            files[path] = name
            own.add(path)
    media = "jpg" if image else "mp4"
    primary = "reasoner_text.txt" if text else f"vision.{media}"
    for required in (primary, *(f"control_{hint}.{media}" for hint in hints)):
        need(f"{request_id}/{name}/{required}" in own, f"{required} is missing")


def _path(path: Any, request_id: str, name: Any) -> None:
    parts = path.split("/") if isinstance(path, str) else []
    need(len(parts) >= 3 and parts[:2] == [request_id, name] and all(map(safe, parts)), f"unsafe path {path!r}")


def run(
    *, input_text: str, output_path: str, endpoint: str, token: str, revision: str = PIN, timeout: float = 300.0
) -> dict[str, Any]:
    """One batch from JSON text to a published directory or S3 prefix; returns the manifest.

    Raises:
        BaselineClientError: any rule of the contract is broken.
    """
    request = prepare(input_text)
    endpoint = endpoint.strip().rstrip("/")
    need(bool(endpoint), "no endpoint")
    need(output_path.startswith(("s3://", "/")), "output path")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, timeout=timeout) as http:
        answer = http.post(f"{endpoint}/v1/batches", json=request)
        need(answer.is_success, f"Cosmos3 Ray Serve request failed ({answer.status_code}): {answer.text[:1000]}")
        response = answer.json()
        files = bind(request, response, revision)
        published: dict[str, bytes] = {}
        for artifact in response["artifacts"]:
            got = http.get(f"{endpoint}/v1/artifacts/{artifact['path']}")
            need(got.is_success, f"artifact {artifact['path']}: {got.status_code}")
            same = len(got.content) == artifact["bytes"]
            same = same and hashlib.sha256(got.content).hexdigest() == artifact["sha256"]
            need(same, f"artifact integrity mismatch for {artifact['path']}")
            published[f"artifacts/{artifact['path']}"] = got.content
    need(len(published) == len(files), "artifacts")
    is_s3 = output_path.startswith("s3://")
    uri = output_path.rstrip("/") + "/" if is_s3 else output_path
    manifest = {
        "schema_version": PROVENANCE,
        "status": "completed",
        "run_id": "",
        "endpoint": endpoint,
        "input_path": "",
        "output_path": output_path,
        "model": request["model"],
        "sample_names": [sample["name"] for sample in request["samples"]],
        "batch_size": len(request["samples"]),
        "backend": BACKEND,
        "weights_baked": False,
        **{
            key: response[key]
            for key in (
                "request_id",
                "guardrails",
                "max_batch_size",
                "framework_revision",
                "server_source_revision",
                "artifacts",
            )
        },
        "structured_outputs": response["outputs"],
        "runtime_image": os.environ.get("NPA_TASK_IMAGE", ""),
        "published_uri": uri,
        "provenance_uri": (uri if is_s3 else uri.rstrip("/") + "/") + "provenance.json",
    }
    published["request.json"] = json.dumps(request, indent=2).encode()
    published["response.json"] = json.dumps(response, indent=2).encode()
    published["provenance.json"] = (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()
    _publish(output_path, published)
    return manifest


def _publish(output_path: str, files: dict[str, bytes]) -> None:
    if output_path.startswith("s3://"):
        import boto3

        url = urlsplit(output_path)
        prefix = unquote(url.path).strip("/")
        client = boto3.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL"))
        for name, data in files.items():
            client.put_object(Bucket=url.netloc, Key=f"{prefix}/{name}".lstrip("/"), Body=data)
        return
    for name, data in files.items():
        target = Path(output_path) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
