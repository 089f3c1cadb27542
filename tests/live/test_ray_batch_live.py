"""The live check of a running service, for an operator (docs/operations.md, "Live check").

    NPA_INTEGRATION_E2E=1 NPA_COSMOS3_RAY_ENDPOINT=… NPA_COSMOS3_RAY_TOKEN=…
    NPA_COSMOS3_RAY_LIVE_OUTPUT_URI=s3://bucket/owned/prefix/  and the S3 variables;  python -m pytest tests/live -rA

One text2image and one sample of implicit mode whose conditioning picture has an encoded S3 name: image2image on the
framework engine; image2video where the service is the diffusers engine, which refuses image2image by name. What was
published is read back with other code than the client's, and malformed copies of the real response are replayed to
the client. Nothing is removed: what a run leaves stays below the prefix as its evidence.
"""

import asyncio
import copy
import io
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.replay import replay

from cosmos3_serve.client.health import ask_health
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import ContractViolation, Cosmos3Error, NotFound
from cosmos3_serve.storage.location import open_store
from cosmos3_serve.storage.uri import S3Uri, parse_s3
from cosmos3_serve.trial.independent import verify_publication

ENDPOINT, TOKEN, OUTPUT = "NPA_COSMOS3_RAY_ENDPOINT", "NPA_COSMOS3_RAY_TOKEN", "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI"
ENCODED_NAME, NAME = "first%20frame%2B1%20%C3%A9.png", "first frame+1 é.png"

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.environ.get("NPA_INTEGRATION_E2E") != "1", reason="NPA_INTEGRATION_E2E is not 1"),
]


@dataclass(frozen=True)
class Live:
    """One run: the service's report, its place in S3, and what was published there."""

    ready: dict[str, Any]
    root: S3Uri
    samples: list[dict[str, Any]]
    manifest: dict[str, Any]
    seen: dict[str, Any]
    folder: Path

    @property
    def revision(self) -> str:
        return expected_revision(self.ready)

    def published(self, name: str) -> Any:
        return json.loads((self.folder / "publication" / name).read_text(encoding="utf-8"))


def s3_environ() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("NEBIUS_S3_ENDPOINT") or ""
    return {**os.environ, "AWS_ENDPOINT_URL": endpoint}


def expected_revision(ready: dict[str, Any]) -> str:
    """The pin, except for a service that calls itself the diffusers engine."""
    return str(ready["framework_revision"]) if ready.get("engine") == "diffusers" else FRAMEWORK_REVISION


def samples_for(ready: dict[str, Any], conditioning: str) -> list[dict[str, Any]]:
    text = {"name": "live-text", "prompt": "a robot workcell", "model_mode": "text2image", "seed": 17, "num_steps": 4}
    frames, mode = (5, "image2video") if ready.get("engine") == "diffusers" else (1, "image2image")
    second = {"name": "live-implicit", "prompt": "the same place at night", "vision_path": conditioning, "seed": 23}
    second |= {"num_steps": 4, "num_frames": frames}
    if ready.get("custom_defaults"):  # such a service wants both fields in every sample
        text["num_frames"], second["model_mode"] = 1, mode
    return [text, second]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    missing = [name for name in (ENDPOINT, TOKEN, OUTPUT) if not os.environ.get(name, "").strip()]
    assert not missing, f"NPA_INTEGRATION_E2E is 1, and these are not set: {', '.join(missing)}"
    folder = tmp_path_factory.mktemp("live")
    ready = ask_health().check()
    owned = parse_s3(os.environ[OUTPUT])
    run = f"live-{secrets.token_hex(6)}"
    root = S3Uri(owned.bucket, "/".join(filter(None, (owned.key, run))), directory=True)
    picture = io.BytesIO()
    Image.effect_mandelbrot((256, 256), (-2.0, -1.5, 1.0, 1.5), 60).convert("RGB").save(picture, "PNG")

    async def upload() -> None:
        place = open_store(str(root))
        await place.store.put_bytes(place.key(f"inputs/{NAME}"), picture.getvalue(), create=True)

    asyncio.run(upload())
    samples = samples_for(ready, f"{root}inputs/{ENCODED_NAME}")
    (folder / "batch.json").write_text(json.dumps({"samples": samples}))
    manifest = submit_batch(
        input_path=str(folder / "batch.json"),
        output_path=f"{root}outputs/",
        run_id=run,
        timeout=3000,
        expected_revision=expected_revision(ready),
        journal_dir=folder / "journal",
    )
    seen = verify_publication(root.bucket, f"{root.key}/outputs", s3_environ(), folder / "publication")
    return Live(ready, root, samples, manifest, seen, folder)


def test_request_response_and_provenance_are_those_of_this_batch(live: Live) -> None:
    request, response, provenance = (live.published(f"{n}.json") for n in ("request", "response", "provenance"))
    assert provenance == live.manifest and provenance["status"] == "completed"
    assert request["samples"] == live.samples
    assert request["request_id"] == response["request_id"] == provenance["request_id"] != ""
    assert response["framework_revision"] == provenance["framework_revision"] == live.revision
    assert response["guardrails"] is live.ready["guardrails"]
    args = {output["args"]["name"]: output["args"] for output in response["outputs"]}
    assert [args[sample["name"]]["seed"] for sample in live.samples] == [17, 23]


def test_the_implicit_mode_was_understood_and_the_encoded_name_kept(live: Live) -> None:
    args = {output["args"]["name"]: output["args"] for output in live.published("response.json")["outputs"]}
    wanted = "image2video" if live.ready.get("engine") == "diffusers" else "image2image"
    assert args["live-implicit"]["model_mode"] == wanted
    assert args["live-text"]["model_mode"] == "text2image"
    assert live.published("request.json")["samples"][1]["vision_path"].endswith(f"/{ENCODED_NAME}")
    if "engine" in live.ready:  # a baseline service shows the path of its staged copy
        assert args["live-implicit"]["vision_path"] == live.samples[1]["vision_path"]


def test_both_results_decode(live: Live, record_property: Callable[[str, object], None]) -> None:
    """Every byte was read back and decoded by `verify_publication`; here: that both are there, and what they are."""
    primary = {item["path"].split("/")[1]: item for item in live.seen["artifacts"] if "/vision." in item["path"]}
    assert primary.keys() == {"live-text", "live-implicit"}
    frames = live.samples[1]["num_frames"]
    assert primary["live-text"]["frames"] == 1 and primary["live-implicit"]["frames"] == frames
    assert all(item["width"] >= 64 and item["height"] >= 64 for item in primary.values())
    assert live.ready["weights"] in ("random", "pretrained", "unknown") if "weights" in live.ready else True
    record_property("engine", live.revision)
    record_property("weights", live.ready.get("weights", "unknown"))
    record_property("target", live.ready.get("target", "unknown"))


# ---- malformed copies of the real response -------------------------------------------------------------------------


def other_request(response: dict[str, Any]) -> None:
    response["request_id"] = "another-request"


def other_name(response: dict[str, Any]) -> None:
    response["outputs"][1]["args"]["name"] = "somebody-elses"


def undeclared_file(response: dict[str, Any]) -> None:
    del response["artifacts"][0]


def climbing_path(response: dict[str, Any]) -> None:
    response["artifacts"][0]["path"] = f"{response['request_id']}/live-text/../../etc/passwd"


def other_seed(response: dict[str, Any]) -> None:
    response["outputs"][0]["args"]["seed"] = 18


def failed_sample(response: dict[str, Any]) -> None:
    response["outputs"][0]["status"] = "error"


def no_hash(response: dict[str, Any]) -> None:
    response["artifacts"][0]["sha256"] = "0"


def other_schema(response: dict[str, Any]) -> None:
    response["schema_version"] = "npa.cosmos3.ray-serve.batch.v2"


BREAK: list[Callable[[dict[str, Any]], None]] = [
    *(other_request, other_name, undeclared_file, climbing_path),
    *(other_seed, failed_sample, no_hash, other_schema),
]


def submit_again(live: Live, response: dict[str, Any], name: str, expected: type[Cosmos3Error]) -> Any:
    """The same request, answered by `response` out of the double; the double, after the client has refused it."""
    batch = live.folder / f"{name}.json"
    batch.write_text(json.dumps(live.published("request.json")))
    output = f"{live.root}malformed/{name}/"
    with replay(live.ready, response) as service:
        with pytest.raises(expected):
            submit_batch(
                input_path=str(batch),
                output_path=output,
                endpoint=service.endpoint,
                timeout=60,
                expected_revision=live.revision,
                journal_dir=live.folder / f"journal-{name}",
            )
        assert service.posts == 1

    async def left() -> list[str]:
        place = open_store(output)
        keys = [item.key async for item in place.store.list(place.prefix)]
        return [key for key in keys if "/.cosmos3-claims/" not in key]  # who tried, for the next client

    assert asyncio.run(left()) == [], "something was published"
    return service


@pytest.mark.parametrize("damage", BREAK, ids=lambda f: f.__name__)
def test_a_malformed_copy_is_rejected_before_download_and_publication(
    live: Live, damage: Callable[[dict[str, Any]], None]
) -> None:
    response = copy.deepcopy(live.published("response.json"))
    damage(response)
    service = submit_again(live, response, damage.__name__, Cosmos3Error)
    assert service.artifacts == [], "an artifact was asked for"


def test_the_unchanged_copy_is_accepted_and_its_artifacts_are_asked_for(live: Live) -> None:
    """So that the copies above are rejected for their damage: this one gets as far as the missing artifacts."""
    service = submit_again(live, live.published("response.json"), "unchanged", Cosmos3Error)
    assert service.artifacts != []
    assert issubclass(NotFound, Cosmos3Error) and issubclass(ContractViolation, Cosmos3Error)
