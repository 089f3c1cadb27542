import json
import subprocess
import sys
import time

import pytest

from cosmos3_serve.service import stages
from cosmos3_serve.service.stages import Stages


def test_a_stage_counts_from_the_start_of_the_process_and_only_once() -> None:
    code = """if True:
        import json, time
        time.sleep(0.4)
        from cosmos3_serve.service.stages import Stages
        noted = Stages()
        noted.done("first")
        time.sleep(0.1)
        noted.done("first")
        noted.done("second")
        print(json.dumps(noted.seconds))
    """
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    lived = time.monotonic() - began
    seconds = json.loads(said)
    assert list(seconds) == ["first", "second"]
    # The clock tick that a process's start is counted in is a hundredth of a second.
    assert 0.39 <= seconds["first"] <= seconds["second"] - 0.1 + 0.002 <= lived


def test_where_the_system_does_not_say_it_counts_from_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "start_time", lambda pid: None)
    noted = Stages()
    noted.done("here")
    assert 0 <= noted.seconds["here"] <= time.monotonic() - stages._IMPORTED + 0.001
