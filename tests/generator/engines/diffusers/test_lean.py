"""A replica goes without torch's compiler and the models of transformers, and its samples keep their bytes."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.engine import fingerprint, generate, make_job

from cosmos3_serve.generator.engines.diffusers import lean

T2I = {"model_mode": "text2image", "prompt": "a red cube", "num_steps": 2}

# In a process of its own: what is imported once stays.
REPLICA = """
import json, pathlib, sys
from cosmos3_serve.generator.engines.diffusers.lean import import_lean
from cosmos3_serve.service.memory import uncollected
with uncollected():
    import_lean()
    from support.engine import fingerprint, generate, make_engine, make_job
root = pathlib.Path(sys.argv[1])
job = make_job(root, "lean", **json.loads(sys.argv[2]))
[result] = generate(make_engine(root), job)
assert result.error is None, result.error
heavy = [name for name in ("torch._dynamo", "sympy", "transformers.modeling_utils") if name in sys.modules]
print(json.dumps({"heavy": heavy, "files": fingerprint(job)}))
"""


def test_a_replica_makes_the_same_bytes_without_what_it_never_runs(engine, root, tmp_path):
    tests = Path(__file__).parents[3]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, "-c", REPLICA, str(tmp_path.resolve()), json.dumps(T2I)]
    process = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    said = json.loads(process.stdout)
    job = make_job(root, "lean", **T2I)
    assert generate(engine, job)[0].error is None
    assert said == {"heavy": [], "files": fingerprint(job)}


def test_who_asks_for_the_compiler_after_all_gets_the_real_one(tmp_path, monkeypatch):
    (tmp_path / "some_compiler.py").write_text("def allow_in_graph(f): return 'marked'\ndef reset(): return 'real'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lean, "COMPILER", "some_compiler")
    with lean._without_compiler():
        early = importlib.import_module("some_compiler")
        assert early.allow_in_graph(len) is len and early.disable(len) is len and early.disable()(len) is len
    assert importlib.import_module("some_compiler").allow_in_graph(len) == "marked"
    assert early.reset() == "real"  # what was bound meanwhile works too


def test_what_is_hidden_is_there_again(tmp_path, monkeypatch):
    (tmp_path / "some_models.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with lean._hidden("some_models"):
        assert importlib.util.find_spec("some_models") is None
    loaded = importlib.import_module("some_models")
    with lean._hidden("some_models"):
        assert importlib.import_module("some_models") is loaded


def test_where_diffusers_would_find_peft_nothing_is_left_out(monkeypatch):
    monkeypatch.setattr(lean, "WANTS_ALL", "json")
    monkeypatch.setattr(lean, "_without_compiler", lambda: pytest.fail("the compiler was left out"))
    lean.import_lean()
