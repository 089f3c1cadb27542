"""`health` on the command line, under both names; the seed's lines run as written."""

import json
from collections.abc import Iterator

import pytest
from support.hub import GOOD_TOKEN, OTHER_TOKEN, Repo, stub_hub
from support.registry import GOOD_KEY, stub_registry
from support.s3 import LocalS3

from cosmos3_serve.cli import main
from cosmos3_serve.weights.assets import GUARDRAIL1, NANO

PREFLIGHT = ["health", "preflight", "--checks", "hf,ngc,s3", "--json"]
ACCESS = ["health", "access", "--capability", "cosmos3", "--json"]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "NGC_API_KEY", "NGC_CLI_API_KEY", "NPA_S3_BUCKET", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "NEBIUS_S3_ENDPOINT", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NGC_AUTH_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def s3(s3_server: LocalS3) -> LocalS3:
    s3_server.create_bucket("owned")
    return s3_server


@pytest.fixture
def everything(s3: LocalS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    repos = {
        GUARDRAIL1.repo: Repo(GUARDRAIL1.revision, {GUARDRAIL1.probe_file: b"stub"}, gated=True),
        NANO.repo: Repo(NANO.revision, {"README.md": b"card"}),
    }
    with stub_hub(repos) as hub, stub_registry() as registry:
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
    assert [c["status"] for c in found["checks"]] == ["PASS"] * 3 and found["ok"] is True


@pytest.mark.parametrize("npa", [False, True])
def test_missing_credentials_say_so_and_only_strict_refuses(npa: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PREFLIGHT, npa=npa) == 0
    found = json.loads(capsys.readouterr().out)
    assert {c["status"] for c in found["checks"]} == {"WARN"} and found["ok"] is True
    assert all(c["remedy"] for c in found["checks"])
    assert run([*PREFLIGHT, "--strict"], npa=npa) == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False


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
        ["health", "access"],
        ["health", "access", "--capability", "nope"],
        ["health", "nope"],
    ],
)
def test_what_is_no_check_is_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert run(argv, npa=True) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_all_and_repeated_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "preflight", "--checks", "s3,hf,s3", "--offline", "--json"]) == 0
    assert [c["name"] for c in json.loads(capsys.readouterr().out)["checks"]] == ["s3", "hf"]
    assert run(["health", "preflight", "--checks", "all", "--offline", "--json"]) == 0
    assert [c["name"] for c in json.loads(capsys.readouterr().out)["checks"]] == ["hf", "ngc", "s3"]
