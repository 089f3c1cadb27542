"""`health` on the command line, under both names; the seed's lines run as written."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guardrail_hub import REVISION_1_0, engine_repos, guardrail_repos
from support.hub import GOOD_TOKEN, OTHER_TOKEN, stub_hub
from support.oci_registry import oci_registry
from support.registry import GOOD_KEY, stub_registry
from support.s3 import LocalS3

from cosmos3_serve.cli import main
from cosmos3_serve.weights.assets import GUARDRAIL_1_0

PREFLIGHT = ["health", "preflight", "--checks", "hf,ngc,s3", "--json"]
ACCESS = ["health", "access", "--capability", "cosmos3", "--json"]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "NGC_API_KEY", "NGC_CLI_API_KEY", "NPA_S3_BUCKET", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "NEBIUS_S3_ENDPOINT",
        "TRANSFORMERS_OFFLINE",
        "NPA_TASK_IMAGE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NGC_AUTH_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def s3(s3_server: LocalS3) -> LocalS3:
    s3_server.create_bucket("owned")
    return s3_server


@pytest.fixture
def everything(s3: LocalS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with stub_hub({**guardrail_repos(), **engine_repos()}) as hub, stub_registry() as registry:
        environ = {**hub.environ(), **s3.environ, "NGC_API_KEY": GOOD_KEY, "NGC_AUTH_ENDPOINT": registry.endpoint}
        for name, value in {**environ, "NPA_S3_BUCKET": "owned"}.items():
            monkeypatch.setenv(name, value)
        yield


def run(argv: list[str], *, npa: bool = False) -> int:
    return main.run(main.build_npa(), "npa", ["workbench", *argv]) if npa else main.run(main.build(), "cosmos3", argv)


@pytest.mark.parametrize("npa", [False, True], ids=["cosmos3", "npa workbench"])
def test_the_seeds_commands_run_as_written(everything: None, npa: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PREFLIGHT, npa=npa) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"checks", "ok"} and found["ok"] is True
    assert [(c["name"], c["status"]) for c in found["checks"]] == [("hf", "PASS"), ("ngc", "PASS"), ("s3", "PASS")]
    assert run(ACCESS, npa=npa) == 0
    found = json.loads(capsys.readouterr().out)
    assert [c["status"] for c in found["checks"]] == ["PASS"] * 6 and found["ok"] is True


@pytest.mark.parametrize("npa", [False, True])
def test_missing_credentials_are_a_stop(npa: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PREFLIGHT, npa=npa) == 3
    found = json.loads(capsys.readouterr().out)
    # Nothing of this package is in NVIDIA's registry: a key is not required, so its absence is a warning.
    assert [c["status"] for c in found["checks"]] == ["FAIL", "WARN", "FAIL"] and found["ok"] is False
    assert all(c["remedy"] for c in found["checks"])
    assert run([*PREFLIGHT, "--warn-only"], npa=npa) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert run(["health", "preflight", "--checks", "ngc", "--json"], npa=npa) == 0
    assert run(["health", "preflight", "--checks", "ngc", "--strict", "--json"], npa=npa) == 3


def test_a_gated_asset_without_a_token_is_a_stop(
    everything: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert run(ACCESS) == 3
    found = json.loads(capsys.readouterr().out)
    assert [c["status"] for c in found["checks"]] == ["PASS", "PASS", "FAIL", *["PASS"] * 3] and not found["ok"]


def test_each_engines_assets_are_asked_for(
    everything: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSMOS3_GUARDRAIL_REVISION", REVISION_1_0)
    assert run([*ACCESS, "--engine", "diffusers"]) == 0
    assert GUARDRAIL_1_0.repo in capsys.readouterr().out
    assert run([*ACCESS, "--engine", "other"]) == 2


def test_an_image_that_cannot_be_pulled_is_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    argv = ["health", "preflight", "--checks", "image", "--json"]
    with oci_registry(demands="bearer") as registry:
        assert run([*argv, "--image", registry.image]) == 0
        monkeypatch.setenv("NPA_TASK_IMAGE", registry.image)
        assert run(argv, npa=True) == 0
        registry.anonymous = False
        capsys.readouterr()
        assert run(argv) == 3
        (row,) = json.loads(capsys.readouterr().out)["checks"]
        assert (row["name"], row["status"]) == ("image", "FAIL") and registry.image in row["summary"]


def test_a_refused_entitlement_is_exit_3_and_warn_only_0(
    everything: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", OTHER_TOKEN)
    assert run(ACCESS) == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert run([*ACCESS, "--warn-only"]) == 0


def test_words_for_people_hold_no_secret(everything: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PREFLIGHT[:-1]) == 0
    text = capsys.readouterr().out
    assert "PASS  hf" in text and "conditional put" in text
    assert GOOD_TOKEN not in text and GOOD_KEY not in text and "owned" not in text


@pytest.mark.parametrize(
    "argv",
    [
        ["health", "preflight", "--checks", "hf,nope"],
        ["health", "preflight", "--strict", "--warn-only"],
        ["health", "preflight", "--timeout", "0"],
        ["health", "preflight", "--checks", "image"],
        ["health", "preflight", "--checks", "image", "--image", "nvcr.io/nim/x:2.1.0"],
        ["health", "access"],
        ["health", "access", "--capability", "nope"],
        ["health", "nope"],
    ],
)
def test_what_is_no_check_is_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert run(argv, npa=True) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_all_and_repeated_names(everything: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "preflight", "--checks", "s3,hf,s3", "--offline", "--json"]) == 0
    assert [c["name"] for c in json.loads(capsys.readouterr().out)["checks"]] == ["s3", "hf"]
    assert run(["health", "preflight", "--checks", "all", "--offline", "--json"]) == 0
    assert [c["name"] for c in json.loads(capsys.readouterr().out)["checks"]] == ["hf", "ngc", "s3", "image"]
