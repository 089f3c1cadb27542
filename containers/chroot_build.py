"""Runs a container file's instructions with chroot, where no container engine is at hand. Needs root, and util-linux.

    python3 containers/chroot_build.py FILE --base DIR --work DIR [--build-arg NAME=VALUE] [--env NAME=VALUE]
        [--bind PATH[:PATH]] [-- COMMAND …]

    FILE         a container file of this folder
    --base       the root of a Debian: `debootstrap --variant=minbase trixie DIR`, with a Python below /usr/local for
                 the files that expect one there
    --work       an empty folder, where the stages are made: 0, 1, …; the last one is the image
    --build-arg  as a container engine takes it
    --env        wins over the file's ENV while RUN runs, for example the folder of a package cache
    --bind       a path of this machine that RUN sees, under the same or another name
    COMMAND      runs in the image at last, as its user and with its environment

FROM, ARG, ENV, WORKDIR, COPY, RUN and USER mean what they mean to a container engine, as far as these files use them;
the rest is skipped. Only the file system is another one: network, processes and devices are this machine's. Mounts live
in a namespace of their own and end with this program. Exit code: 0, or that of the first command that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRIVATE = "COSMOS3_CHROOT_BUILD"  # set in the process that has a mount namespace of its own
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNTS = ("/proc", "/dev", "/etc/resolv.conf", "/etc/hosts")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def pairs(text: str) -> dict[str, str]:
    found = re.findall(r"([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|'[^']*'|\S*)", text)
    return {name: value.strip("'\"") for name, value in found}


class Build:
    """One container file, instruction by instruction. `root` is the root directory of the stage that is being made."""

    def __init__(
        self, base: Path, work: Path, given: Mapping[str, str], env: Mapping[str, str], binds: list[str]
    ) -> None:
        self._base, self._work, self._given, self._over, self._binds = base, work, given, env, binds
        self._stages: dict[str, Path] = {}
        self._shared: dict[str, str] = {}  # ARGs before the first FROM

    def do(self, word: str, rest: str) -> None:
        """Raises CalledProcessError: a command failed; OSError: something to copy is not there."""
        match word:
            case "FROM":
                self._begin(rest.partition(" AS ")[2].strip())
            case "ARG":
                name = rest.partition("=")[0]
                value = {**pairs(rest), **self._shared, **self._given}.get(name, "")
                (self._args if self._stages else self._shared)[name] = value
            case "ENV":
                known = {**self._args, **self._env}
                self._env |= {
                    name: string.Template(value).safe_substitute(known) for name, value in pairs(rest).items()
                }
            case "WORKDIR":
                self._folder = rest
                self.inside(rest).mkdir(parents=True, exist_ok=True)
            case "USER":
                self._user = rest
            case "COPY":
                self._copy(rest.split())
            case "RUN":
                self.execute(json.loads(rest) if rest.startswith("[") else ["/bin/sh", "-c", rest], self._over)

    def inside(self, path: str) -> Path:
        return self.root / (Path(self._folder) / path).relative_to("/")

    def execute(self, command: list[str], over: Mapping[str, str]) -> None:
        """In the stage, as its user."""
        chroot = shutil.which("chroot") or "chroot"  # by this machine's PATH, not the image's
        entered = [chroot, f"--userspec={self._user}", str(self.root), "/bin/sh", "-c", 'cd "$0" && exec "$@"']
        env = {**self._args, **self._env, **over}
        subprocess.run([*entered, self._folder, *command], env=env, check=True, stdin=subprocess.DEVNULL)

    def _begin(self, name: str) -> None:
        self.root = self._work / str(len(self._stages))
        subprocess.run(["cp", "-a", "--reflink=auto", str(self._base), str(self.root)], check=True)
        self._stages[name or self.root.name] = self.root
        self._args: dict[str, str] = {}
        self._env, self._user, self._folder = {"PATH": DEFAULT_PATH}, "0:0", "/"
        for bind in [*MOUNTS, *self._binds]:
            origin, _, name = bind.partition(":")
            target = self.inside(name or origin)
            if Path(origin).is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            subprocess.run(["mount", "--rbind", origin, str(target)], check=True)

    def _copy(self, words: list[str]) -> None:
        source = self._stages[words.pop(0).removeprefix("--from=")] if words[0].startswith("--from=") else ROOT
        *names, to = words
        for name in names:
            origin, target = source / name.lstrip("/"), self.inside(to)
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if source == ROOT else None
                shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                shutil.copy2(origin, target / origin.name if target.is_dir() else target)


def split(given: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (one.partition("=") for one in given)}


def main(arguments: list[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--bind", action="append", default=[])
    given = parser.parse_args(own)
    if PRIVATE not in os.environ:
        again = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, *arguments]
        return subprocess.run(again, env={**os.environ, PRIVATE: "1"}).returncode
    given.work.mkdir(parents=True, exist_ok=True)
    build = Build(given.base, given.work, split(given.build_arg), split(given.env), given.bind)
    try:
        for word, rest in instructions(given.file.read_text()):
            print(f"{word} {rest}"[:160], file=sys.stderr, flush=True)
            build.do(word, rest)
        if command:
            build.execute(command, {})
    except subprocess.CalledProcessError as failed:
        print(f"chroot_build.py: exit code {failed.returncode}", file=sys.stderr)
        return failed.returncode or 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
