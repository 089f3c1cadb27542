"""Every command that a manifest runs is one: ours by our own parser, the shell's by the shell."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
from support.commands import in_script, parse
from support.manifests import everything

from cosmos3_serve.deploy.kube.pod import containers_of
from cosmos3_serve.service import probe

VARIABLES = {"PROFILE": "round-robin", "MODEL": "nvidia/cosmos3-nano-reasoner"}


def commands() -> list[tuple[str, list[str]]]:
    """Place and argument list of everything that a container runs: commands, probes, hooks."""
    found = []
    for document in (d for f in everything() for d in f.documents):
        for container in containers_of(document):
            where = f"{document['kind']}/{document['metadata']['name']} {container['name']}"
            if "command" in container:
                found.append((where, [*container["command"], *container.get("args", [])]))
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "exec" in container.get(kind, {}):  # an image of others is asked over HTTP
                    found.append((f"{where} {kind}", container[kind]["exec"]["command"]))
            if "lifecycle" in container:
                found.append((f"{where} preStop", container["lifecycle"]["preStop"]["exec"]["command"]))
    return found


COMMANDS = commands()
SHELLS = [(where, words[0], words[-1]) for where, words in COMMANDS if words[0] in ("/bin/sh", "/bin/bash")]
OURS = [(w, call) for w, _, script in SHELLS for call in in_script(script, VARIABLES)]
OURS += [(where, words) for where, words in COMMANDS if words[0] in ("cosmos3", "npa")]


def test_the_jobs_run_our_programs() -> None:
    assert {tuple(call[1:3]) for _, call in OURS} >= {
        ("reasoner", "smoke"),
        ("bench", "setup"),
        ("bench", "videos"),
        ("bench", "reasoner"),
        ("ray-batch", "--resume"),
        ("ray-batch", "--input-path"),
        ("ray-health", "--timeout"),
    }


@pytest.mark.parametrize(("where", "call"), OURS, ids=lambda value: value if isinstance(value, str) else value[1])
def test_the_real_parser_takes_it(where: str, call: list[str]) -> None:
    found: dict[str, Any] = parse(call)
    assert found, where


PROBES = [(where, words) for where, words in COMMANDS if words[0] == "cosmos3-probe"]
MODULES = [(where, words) for where, words in COMMANDS if words[:2] == ["python", "-m"]]


@pytest.mark.parametrize(("where", "words"), PROBES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_probe_is_what_the_probes_program_takes(
    where: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(probe, "ask", lambda *args, **named: asked.append((args, named)))
    assert probe.main(words[1:]) == 0, where
    ((service, path), named) = asked[0]
    assert service in where and (path == "/ready") == where.endswith("readinessProbe")
    assert named["port"] == 8000


@pytest.mark.parametrize(("where", "words"), MODULES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_hook_is_a_module_that_takes_its_arguments(
    where: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(words[2])
    monkeypatch.setitem(sys.modules, "ray", None)  # past the arguments nothing happens here
    assert module.main(words[3:]) == module.NOT_DONE, where
    with pytest.raises(SystemExit):
        module.main([*words[3:], "--no-such-flag"])


def test_every_command_of_a_container_was_looked_at() -> None:
    ours = {"cosmos3", "npa", "cosmos3-probe", "python", "/bin/sh"}
    # Of NVIDIA's images: what is in them is theirs.
    theirs = {"python3", "/opt/nim/start_server.sh", "download-to-cache"}
    assert {words[0] for _, words in COMMANDS} <= ours | theirs
    assert PROBES and MODULES


def test_the_parser_would_refuse_a_wrong_one() -> None:
    for wrong in ("cosmos3 bench reasoners", "cosmos3 reasoner smoke --video-prot 1", "npa workbench cosmos3 nope"):
        with pytest.raises(Exception, match=r"No such|Missing"):
            parse(wrong.split())


def test_calls_are_found_wherever_they_stand_in_a_script() -> None:
    script = """set -eu
cosmos3 a --x 1 \\
  --y "$MODEL"
if cosmos3 b; then exec npa c > file; fi
out=$(cosmos3 d --z 2) && rc=0 || rc=$?
# cosmos3 comment
"""
    found = list(in_script(script, VARIABLES))
    assert [call[1] for call in found] == ["a", "b", "c", "d"]
    assert found[0] == ["cosmos3", "a", "--x", "1", "--y", VARIABLES["MODEL"]]
    assert found[3] == ["cosmos3", "d", "--z", "2"]


@pytest.mark.parametrize(("where", "shell", "script"), SHELLS, ids=lambda value: value if "/" in value[:40] else "")
def test_the_shell_reads_every_script(where: str, shell: str, script: str) -> None:
    for program in {shell, "/bin/bash"}:
        done = subprocess.run([program, "-n"], input=script, text=True, capture_output=True, timeout=20, check=False)
        assert done.returncode == 0, f"{where}: {done.stderr}"
    assert script.startswith("set -"), f"{where}: an error in the middle must end it"
