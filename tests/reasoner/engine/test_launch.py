"""The server runs as if it had been started by itself, and neither it nor what it spawns collects before it is up."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cosmos3_serve.reasoner.engine import launch

SERVER = """
import gc, json, multiprocessing, sys
from server.work import look
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        child = pool.apply(look)
    own = look()
    gc.freeze()
    print(json.dumps({"argv": sys.argv, "own": own, "child": child, "up": gc.get_threshold()}))
    gc.freeze()
    sys.exit(3)
"""
WORK = """
import gc, sys
def look():
    return [gc.get_threshold(), "server.api" in sys.modules, sys.modules["__main__"].__name__]
"""


def test_a_server_and_what_it_spawns_collect_rarely_until_the_heap_is_frozen(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server/__init__.py").touch()
    (tmp_path / "server/api.py").write_text(SERVER)
    (tmp_path / "server/work.py").write_text(WORK)
    shutil.copyfile(launch.__file__, tmp_path / "launcher.py")
    process = subprocess.run(
        [sys.executable, "-m", "launcher", "server.api", "--port", "1"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert process.returncode == 3, process.stderr
    said = json.loads(process.stdout)
    assert said["argv"] == ["api.py", "--port", "1"]
    assert said["own"][0] == said["child"][0] == list(launch.RARELY)
    assert said["child"][1:] == [False, "__mp_main__"]  # the server is not imported again
    assert said["up"][0] < 10_000
