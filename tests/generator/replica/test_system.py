"""System information: devices as nvidia-smi names them, and nothing that blocks or fails a request."""

import stat
from pathlib import Path

import pytest

from cosmos3_serve.generator.engines.job import EngineInfo
from cosmos3_serve.generator.replica import system
from cosmos3_serve.generator.replica.system import SystemInfo, accelerators


def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_devices_with_commas_in_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo 'NVIDIA B200, 192GB, 10.0, 590.12'; echo 'NVIDIA B200, 192GB, 10.0, 590.12'")
    found = accelerators()
    assert len(found) == 2
    assert found[0] == {"name": "NVIDIA B200, 192GB", "compute_capability": "10.0", "driver": "590.12"}


@pytest.mark.parametrize("script", ["exit 9", "echo garbage", "sleep 5"])
def test_a_tool_that_fails_means_no_devices(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NVIDIA_SMI_TIMEOUT_S", 0.3)
    smi(tmp_path, monkeypatch, script)
    assert accelerators() == []


def test_no_tool_means_no_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accelerators() == []


def engine_on(*capabilities: str, told: bool = True) -> EngineInfo:
    return EngineInfo(
        engine="diffusers", revision="r", backend="b", checkpoint="c", checkpoint_revision="1", checkpoint_digest="d",
        weights="random", device="x", dtype="bfloat16", supported_modes=(), capabilities=capabilities if told else None,
    )  # fmt: skip


async def test_the_target_is_the_engines_device_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [{"name": "x", "compute_capability": "8.0", "driver": "1"}]
    monkeypatch.setattr(system, "accelerators", lambda: devices)
    known: list[EngineInfo | None] = [None]
    info = SystemInfo({}, lambda: known[0], dict, forced=True)
    first = (await info())["target"]
    assert (first["target"], first["status"], first["forced"]) == ("sm_80", "unsupported", True)
    known[0] = engine_on("9.0")
    second = (await info())["target"]
    assert (second["target"], second["status"], second["forced"]) == ("sm_90", "unproven", False)
    known[0] = engine_on()
    assert (await info())["target"]["status"] == "cpu"
    known[0] = engine_on(told=False)
    assert (await info())["target"]["target"] == "sm_80", "an engine that does not say is judged by the machine"
    told = SystemInfo({}, lambda: None, dict, on_cpu=True)
    assert (await told())["target"]["target"] == "cpu"


async def test_it_asks_seldom_and_survives_a_ray_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def resources() -> dict[str, float]:
        asked.append(1)
        raise ConnectionError

    monkeypatch.setattr(system, "accelerators", lambda: [{"name": "x", "compute_capability": "10.0", "driver": "1"}])
    info = SystemInfo({"framework_revision": "r"}, lambda: None, resources)
    first, second = await info(), await info()
    assert first == second and len(asked) == 1
    assert first["accelerators"] == [{"name": "x", "compute_capability": "10.0"}] and first["driver"] == "1"
    assert first["ray_cluster_resources"] == {} and first["framework_revision"] == "r" and first["engine"] is None
