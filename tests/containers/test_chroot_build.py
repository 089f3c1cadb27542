"""A container file's instructions run with chroot: what is run where, with stand-ins for chroot, mount and unshare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.dockerfile import FILES, ROOT

CHROOT = """#!/bin/sh
user=$1 root=$2; shift 6
echo "$user ${root##*/} PATH=${PATH%%:*} SHA=$SOURCE_SHA EXTRA=$EXTRA $*" | head -n 1 >>"$LOG_FILE"
case "$*" in *fails*) exit 7;; esac
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.log, self.work, self.base = folder / "log", folder / "work", folder / "base"
        (self.base / "opt" / "venv" / "bin").mkdir(parents=True)
        (self.base / "etc").mkdir()
        tools = folder / "tools"
        tools.mkdir()
        # What runs in a stage sees the image's PATH and nothing of this process, so the log's name is in the program.
        chroot = CHROOT.replace('"$LOG_FILE"', str(self.log))
        unshare = '#!/bin/sh\nshift 3\nexec "$@"\n'
        for name, text in (("chroot", chroot), ("mount", "#!/bin/sh\n"), ("unshare", unshare)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.env = {"PATH": f"{tools}:{os.environ['PATH']}"}

    def run(self, file: Path, *more: str) -> subprocess.CompletedProcess[str]:
        script = ROOT / "containers" / "chroot_build.py"
        line = [sys.executable, script, file, "--base", self.base, "--work", self.work, "--build-arg", "SOURCE_SHA=abc"]
        return subprocess.run([*line, *more], env=self.env, capture_output=True, text=True, timeout=60)

    def did(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_runs_through(path: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    done = machine.run(path, "--env", "EXTRA=1", "--", "true")
    assert done.returncode == 0, done.stderr
    *runs, last = machine.did()
    assert len(runs) == path.read_text().count("\nRUN ")
    assert all("SHA=abc" in line and "EXTRA=1" in line for line in runs)
    assert last.startswith("--userspec=1000:1000") and last.endswith("true") and "EXTRA= " in last


def test_stages_copies_users_and_variables(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    file = tmp_path / "Dockerfile"
    file.write_text(
        "ARG BASE=x\nFROM ${BASE} AS build\nARG SOURCE_SHA\nWORKDIR /build\nCOPY LICENSE containers ./\n"
        "RUN first\nFROM ${BASE}\nCOPY --from=build /build /there\nENV PATH=/opt/it:$PATH\nUSER 1000:1000\n"
        'RUN ["second", "word"]\n'
    )
    done = machine.run(file)
    assert done.returncode == 0, done.stderr
    first, second = machine.did()
    assert first.startswith("--userspec=0:0 0 ") and first.endswith("first") and "PATH=/usr/local/sbin" in first
    assert second.startswith("--userspec=1000:1000 1 ") and second.endswith("second word") and "PATH=/opt/it" in second
    assert "SHA= " in second, "an ARG belongs to its stage"
    assert (machine.work / "1" / "there" / "LICENSE").is_file()
    assert (machine.work / "1" / "there" / "chroot_build.py").is_file()


def test_a_command_that_fails_ends_it_with_its_exit_code(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    file = tmp_path / "Dockerfile"
    file.write_text("FROM x\nRUN fails\nRUN never\n")
    assert machine.run(file).returncode == 7
    assert len(machine.did()) == 1
