"""Everything that is refused before the POST, and services that say no."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import BaselineServer, Faults
from support.places import unpublished
from support.s3 import LocalS3

from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.progress import Silent
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import (
    Cosmos3Error,
    Cosmos3RayServeError,
    ExitCode,
    NotReady,
    Refusal,
    Unauthorized,
    UsageError,
    ValidationFailed,
)

SAMPLES = [{"name": "a", "model_mode": "text2image", "prompt": "p", "seed": 17, "resolution": "256"}]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BaselineServer]:
    with BaselineServer(tmp_path / "server", faults=Faults()) as made:
        yield made


def batch(tmp_path: Path, samples: Any = None) -> str:
    path = tmp_path / "batch.json"
    path.write_text(json.dumps(SAMPLES if samples is None else samples))
    return str(path)


def sample(**changes: Any) -> list[dict[str, Any]]:
    return [{**SAMPLES[0], **changes}]


INPUTS: dict[str, Any] = {
    "no samples": [],
    "unknown key": sample(promt="typo"),
    "unknown mode": sample(model_mode="tex2image"),
    "video2image": [{"name": "a", "vision_path": "s3://b/v.mp4", "num_frames": 1}],
    "unknown suffix": [{"name": "a", "vision_path": "s3://b/v.gif"}],
    "local path": sample(model_mode="image2image", vision_path="/etc/passwd.png"),
    "http path": sample(model_mode="image2image", vision_path="http://h/x.png"),
    "two outputs": sample(num_outputs=2),
    "half a frame": sample(num_frames=1.5),
    "defaults file": sample(defaults_file="x.json"),
    "output dir": sample(output_dir="/tmp"),
    "pickle": sample(pickle_file="s3://b/x.pickle"),
    "name with blank": sample(name=" a "),
    "names twice": sample() * 2,
    "other model": {"model": "Cosmos3-Super", "samples": sample()},
    "bad id": {"request_id": "../x", "samples": sample()},
    "number for text": sample(resolution=256),
    "key that cannot be fetched exactly": sample(model_mode="image2image", vision_path="s3://b/a%3Fb.png"),
    "key with two slashes": sample(model_mode="image2image", vision_path="s3://b/a//b.png"),
    "key that climbs": sample(model_mode="image2image", vision_path="s3://b/a/../b.png"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_bad_input_never_reaches_the_service(server: BaselineServer, tmp_path: Path, name: str) -> None:
    for dry_run in (True, False):
        with pytest.raises(Cosmos3Error) as caught:
            submit_batch(
                input_path=batch(tmp_path, INPUTS[name]), output_path=str(tmp_path / "out"), endpoint=server.endpoint,
                dry_run=dry_run,
            )  # fmt: skip
        assert caught.value.exit_code == ExitCode.INPUT
        assert caught.value.remedy or all(e.remedy for e in caught.value.errors)
    assert server.log == []


@pytest.mark.parametrize(
    "text", ["", "{", "nope", "[1]", '{"samples": 3}', '"text"', "null", "[" * 9999, '[{"a": NaN}]']
)
def test_what_is_no_batch_is_a_validation_failure(server: BaselineServer, tmp_path: Path, text: str) -> None:
    (tmp_path / "batch.json").write_text(text)
    with pytest.raises(ValidationFailed, match=r"^invalid Cosmos3 Ray batch"):
        submit_batch(
            input_path=str(tmp_path / "batch.json"), output_path=str(tmp_path / "out"), endpoint=server.endpoint
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"input_path": " "},
        {"input_path": "/nowhere/batch.json"},
        {"input_path": "s3://bucket/prefix/"},
        {"output_path": "relative/out"},
        {"output_path": "s3:///key"},
        {"output_path": "s3://b/a//c"},
        {"output_path": "gs://b/out"},
        {"endpoint": ""},
        {"endpoint": "ftp://host"},
        {"endpoint": "host:8000"},
        {"endpoint": "http://user:pw@host"},
        {"endpoint": "http://host?x=1"},
        {"endpoint": "http://host:99999"},
        {"token_env": "NOT_SET"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"concurrency": 0},
        {"resume": True, "dry_run": True},
    ],
)
def test_usage_is_checked_before_anything_is_sent(
    s3: LocalS3, server: BaselineServer, tmp_path: Path, changes: dict[str, Any]
) -> None:
    options = {"input_path": batch(tmp_path), "output_path": str(tmp_path / "out"), "endpoint": server.endpoint}
    with pytest.raises(Cosmos3Error) as caught:
        submit_batch(**(options | changes))
    assert caught.value.exit_code == ExitCode.INPUT
    assert caught.value.remedy
    if "token_env" in changes:
        assert isinstance(caught.value, UsageError) and "NOT_SET" in caught.value.detail
    assert server.log == []


class Ears(Silent):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def test_plain_http_off_this_machine_is_warned_about_not_refused(tmp_path: Path) -> None:
    ears = Ears()
    with pytest.raises(Cosmos3Error):
        submit_batch(
            input_path=batch(tmp_path), output_path=str(tmp_path / "out"), endpoint="http://cosmos3.invalid:8000",
            progress=ears, timeout=1,
        )  # fmt: skip
    assert "plain http" in ears.notices[0]
    assert "support-token" not in "".join(ears.notices)


def not_ready(server: BaselineServer) -> dict[str, Any]:
    server.faults.ready = False
    return {}


def other_token(server: BaselineServer) -> dict[str, Any]:
    server.token = "rotated"
    return {}


def diffusers(server: BaselineServer) -> dict[str, Any]:
    server.revision = "diffusers-0.42.1"
    return {}


def redirect(server: BaselineServer) -> dict[str, Any]:
    server.faults.redirect_to = "http://127.0.0.1:1"
    return {}


def full(server: BaselineServer) -> dict[str, Any]:
    server.faults.post_statuses = [429] * 50
    return {}


def opaque(server: BaselineServer) -> dict[str, Any]:
    server.faults.post_statuses = [500]
    return {}


@pytest.mark.parametrize(
    ("prepare", "kind", "code", "exit_code", "kept"),
    [
        (not_ready, NotReady, "not_ready", ExitCode.REFUSED, False),
        (other_token, Unauthorized, "unauthorized", ExitCode.REFUSED, False),
        (diffusers, Refusal, "revision_mismatch", ExitCode.REFUSED, False),
        (redirect, Cosmos3RayServeError, "redirect_refused", ExitCode.SERVICE, False),
        (full, Refusal, "queue_full", ExitCode.REFUSED, False),
        (opaque, Cosmos3RayServeError, "ray_serve_failed", ExitCode.SERVICE, True),
    ],
)
def test_a_service_that_says_no(
    server: BaselineServer,
    tmp_path: Path,
    own_state: Path,
    prepare: Callable[[BaselineServer], Any],
    kind: type[Cosmos3Error],
    code: str,
    exit_code: int,
    kept: bool,
) -> None:
    prepare(server)
    with pytest.raises(kind) as caught:
        submit_batch(input_path=batch(tmp_path), output_path=str(tmp_path / "out"), endpoint=server.endpoint)
    assert (caught.value.stable_code, caught.value.exit_code) == (code, exit_code)
    assert server.batches == []
    assert unpublished(tmp_path / "out")
    assert bool(Journals(own_state).all()) is kept  # nothing was accepted: nothing to remember


# ---- custom defaults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [True, {"text2image": {"num_frames": 5}}])
@pytest.mark.parametrize("left_out", [("model_mode",), ("num_frames",), ("model_mode", "num_frames")])
def test_custom_defaults_need_mode_and_frames_in_every_sample(
    announced: Any, left_out: tuple[str, ...], tmp_path: Path, server: BaselineServer
) -> None:
    server.faults.announced = {"custom_defaults": announced}
    bare = {name: value for name, value in (SAMPLES[0] | {"num_frames": 1}).items() if name not in left_out}
    samples = [{**SAMPLES[0], "name": "whole", "num_frames": 1}, bare]
    with pytest.raises(ValidationFailed) as refused:
        submit_batch(input_path=batch(tmp_path, samples), output_path=str(tmp_path / "out"), endpoint=server.endpoint)
    assert refused.value.stable_code == "explicit_fields_required" and refused.value.exit_code == ExitCode.INPUT
    assert [error.field for error in refused.value.errors] == [f"samples[1].{name}" for name in left_out]
    assert server.batches == [] and not (tmp_path / "out").exists(), "nothing was sent, nothing was published"


def test_explicit_samples_pass_and_without_the_announcement_nothing_is_asked(
    tmp_path: Path, server: BaselineServer
) -> None:
    server.faults.announced = {"custom_defaults": True}
    explicit = sample(num_frames=1)
    done = submit_batch(input_path=batch(tmp_path, explicit), output_path=str(tmp_path / "a"), endpoint=server.endpoint)
    server.faults.announced = {"custom_defaults": False}
    also = submit_batch(input_path=batch(tmp_path), output_path=str(tmp_path / "b"), endpoint=server.endpoint)
    assert done["status"] == also["status"] == "completed"
