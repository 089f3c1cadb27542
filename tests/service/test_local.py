"""A service that does not start says why, in its own words, and leaves nothing behind."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.processes import left_after, new_mark

from cosmos3_serve.errors import ServiceFailure
from cosmos3_serve.service.local import READY_FILE_ENV, LocalService


class Scripted(LocalService):
    kind, module, token_env = "scripted", "nowhere", "SCRIPTED_TOKEN"

    def __init__(self, script: str, folder: Path, **more) -> None:
        super().__init__(more.pop("environ", {}), folder, **more)
        self.script = script

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.script]


READY = f"""
import json, os, pathlib, sys, time
def ready(**facts):
    file = pathlib.Path(os.environ["{READY_FILE_ENV}"])
    file.with_suffix(".new").write_text(json.dumps(facts)); file.with_suffix(".new").replace(file)
"""


def test_what_the_service_says_is_known_once_it_is_ready(tmp_path) -> None:
    with Scripted(READY + "ready(endpoint='http://x'); time.sleep(600)", tmp_path) as service:
        assert service.url == "http://x"
        assert service.headers == {"Authorization": f"Bearer {service.environ['SCRIPTED_TOKEN']}"}
        assert service.exit_code is None
    assert service.exit_code == -signal.SIGTERM


def test_a_service_that_ends_quotes_its_log(tmp_path) -> None:
    with pytest.raises(ServiceFailure, match="cannot go on"), Scripted("raise SystemExit('cannot go on')", tmp_path):
        pass


def test_a_silent_service_is_given_up_and_ended(tmp_path) -> None:
    mark = new_mark()
    silent = Scripted("import time; time.sleep(600)", tmp_path, start_timeout_s=0.5, environ=mark)
    with pytest.raises(ServiceFailure, match="not ready in time"), silent:
        pass
    assert left_after(mark) == {}


def test_a_ctrl_c_at_the_terminal_is_not_the_services(tmp_path) -> None:
    with Scripted(READY + "ready(group=os.getpgid(0)); time.sleep(600)", tmp_path) as service:
        assert service.ready["group"] != os.getpgid(0)


def test_two_instances_share_a_folder_without_meeting(tmp_path) -> None:
    body = READY + "ready(pid=os.getpid()); time.sleep(600)"
    with Scripted(body, tmp_path) as one, Scripted(body, tmp_path) as two:
        assert one.ready["pid"] == one.pid != two.pid == two.ready["pid"]
        assert one.log_path != two.log_path
        assert json.loads(one._ready_file.read_text()) == one.ready
