"""The record of what computed a sample."""

import pytest
import torch

from cosmos3_serve.generator.engines.diffusers import compute
from cosmos3_serve.generator.engines.diffusers.compute import compute_record, processor, thread_count

CPU = torch.device("cpu")
XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480+
stepping\t: 8

processor\t: 1
vendor_id\t: Other
"""
GRACE = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\nCPU revision\t: 0\n"


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "expected"),
    [
        ("x86_64", XEON, "x86_64 GenuineIntel 6/143/8 Intel(R) Xeon(R) Platinum 8480+"),
        ("aarch64", GRACE, "aarch64 0x41 8/0xd4f/0"),
        ("riscv64", "", "riscv64"),
        ("arm64", None, "arm64"),
    ],
)
def test_a_processor_is_told_by_its_maker_and_model(tmp_path, monkeypatch, machine, cpuinfo, expected):
    monkeypatch.setattr(compute.platform, "machine", lambda: machine)
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    assert processor(path) == expected


def test_the_record_is_what_torch_says_now(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX9000")
    for name in compute.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_CBWR", "AVX2,STRICT")
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1" * 1000)
    monkeypatch.setenv("HF_TOKEN", "not a word about this")
    record = compute_record(CPU, "float32")
    assert (record.device, record.dtype, record.threads, record.cpu_capability) == ("cpu", "float32", 7, "AVX9000")
    assert record.cpu == processor()
    assert record.environment == {"MKL_CBWR": "AVX2,STRICT", "OMP_THREAD_LIMIT": "1" * 128}
    assert record.libraries["torch"] == torch.__version__ and set(record.libraries) == set(compute.LIBRARIES)


def test_a_small_model_on_a_cpu_gets_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert thread_count(compute.SMALL - 1, CPU) == 1
    assert thread_count(compute.SMALL, CPU) == 7
    assert thread_count(1, torch.device("cuda")) == 7
