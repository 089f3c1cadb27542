"""The REAL registry of the pinned revision is answered from what a start proved: its own calls, no `uv`, no network."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.framework_service import CPU, SOCKETS
from support.guardrail_hub import guardrail_repos
from support.hub import Repo, stub_hub
from support.real_framework import PYTHON, needs_framework
from support.upstream_hub import AVAE_CKPT, convert, upstream_repos

from cosmos3_serve.weights import guardrail_assets
from cosmos3_serve.weights.assets import GUARDRAIL1, NANO, QWEN_GUARD
from cosmos3_serve.weights.checkpoint import resolve_checkpoint
from cosmos3_serve.weights.guardrail_assets import FACES, prove_guardrails
from cosmos3_serve.weights.upstream_files import provide_upstream

pytestmark = [pytest.mark.framework, pytest.mark.timeout(300), needs_framework]
# What upstream does while it loads Cosmos3-Nano with guardrails on.
ASK = f"""
import json
from cosmos_framework.auxiliary.guardrail.common.core import GUARDRAIL1_CHECKPOINT
from cosmos_framework.inference.common.checkpoints import register_checkpoints
from cosmos_framework.utils.checkpoint_db import download_checkpoint_v2
from transformers.utils import cached_file
register_checkpoints()
print(json.dumps({{
    "vae": download_checkpoint_v2("s3://bucket/pretrained/tokenizers/video/wan2pt2/Wan2.2_VAE.pth"),
    "sound": download_checkpoint_v2("s3://bucket/pretrained/tokenizers/audio/avae"),
    "guardrail": GUARDRAIL1_CHECKPOINT.download(),
    "classifier": cached_file("{QWEN_GUARD.repo}", "config.json"),
}}))
"""


# And how it loads the guardrails themselves.
LOAD = """
import json
from types import SimpleNamespace
from cosmos_framework.inference.common.inference import GuardrailRunners
runners = GuardrailRunners.create(SimpleNamespace(offload_guardrail_models=True))
print(json.dumps({
    "words": runners.text.safety_models[0].blocklist_words,
    "classes": [type(each).__name__ for each in (*runners.text.safety_models, *runners.video.postprocessors)],
    "blocked": not runners.text.run_safety_check("a stubword")[0],
}))
"""


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What a program prints that runs in the framework's interpreter as upstream's worker does, after a start that
    proved everything over a stub Hub, which is gone by then."""
    monkeypatch.setattr(guardrail_assets, "export", lambda target, environ: None)

    def run(program: str, repos: Mapping[str, Repo]) -> Any:
        cache = tmp_path / "cache"
        with stub_hub({**repos, **upstream_repos()}) as hub:
            environ = {"HF_HOME": str(tmp_path / "hf"), **hub.environ()}
            guardrails = prove_guardrails("framework", revision=None, cache_dir=cache, environ=environ)
            checkpoint = resolve_checkpoint(NANO.repo, cache, environ=environ, framework=True)
            files = provide_upstream(checkpoint, guardrails, cache, convert=convert, environ=environ)
        given = files.environ()
        own = {
            "PATH": given["PATH"].replace("${PATH}", "/usr/bin:/bin"),
            "COSMOS_TRAINING": "0",
            "COSMOS_DEVICE": "cpu",
            "HOME": str(tmp_path),
            "NLTK_DATA": str(guardrails.nltk_data),
            "PYTHONPATH": str(SOCKETS),
            "COSMOS3_TEST_SOCKETS": str(tmp_path / "sockets"),
        }
        done = subprocess.run(
            [PYTHON, "-c", program], env={**given, **own}, cwd=tmp_path, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert not (tmp_path / "sockets").exists(), (tmp_path / "sockets").read_text()
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


def test_upstreams_own_calls_find_what_was_proved(framework: Callable[..., Any]) -> None:
    found = {name: Path(path) for name, path in framework(ASK, guardrail_repos()).items()}
    assert found["vae"].read_bytes() == b"stub, no weights"
    assert (found["sound"] / AVAE_CKPT).read_bytes() == b"derived from stub, no weights"
    assert (found["guardrail"] / "blocklist/custom/words").is_file()
    assert "/framework/" in str(found["classifier"]) and found["classifier"].is_file()


def test_upstreams_own_guardrails_load_offline(framework: Callable[..., Any], tmp_path: Path) -> None:
    """Its real classes, over stand-ins with RANDOM weights: what they load is what was handed over, nothing else."""
    made = subprocess.run(
        [PYTHON, str(CPU / "make_guardrails.py"), str(tmp_path / "made")], capture_output=True, text=True, timeout=200
    )
    assert made.returncode == 0, made.stderr[-3000:]
    repos = guardrail_repos()
    repos[GUARDRAIL1.repo].files[FACES] = (tmp_path / "made" / "faces.pth").read_bytes()
    classifier = {path.name: path.read_bytes() for path in (tmp_path / "made" / "classifier").iterdir()}
    repos[QWEN_GUARD.repo] = Repo(QWEN_GUARD.revision, classifier)
    loaded = framework(LOAD, repos)
    assert loaded["classes"] == ["Blocklist", "Qwen3Guard", "RetinaFaceFilter"]
    assert (loaded["words"], loaded["blocked"]) == (["stubword"], True)
