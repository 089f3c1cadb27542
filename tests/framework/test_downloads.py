"""The REAL registry of the pinned revision is answered from what a start proved: its own calls, no `uv`, no network."""

import json
import subprocess
from pathlib import Path

import pytest
from support.framework_service import SOCKETS
from support.guardrail_hub import guardrail_repos
from support.hub import stub_hub
from support.real_framework import PYTHON, needs_framework
from support.upstream_hub import AVAE_CKPT, convert, upstream_repos

from cosmos3_serve.weights import guardrail_assets
from cosmos3_serve.weights.assets import NANO, QWEN_GUARD
from cosmos3_serve.weights.checkpoint import resolve_checkpoint
from cosmos3_serve.weights.guardrail_assets import prove_guardrails
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


def test_upstreams_own_calls_find_what_was_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardrail_assets, "export", lambda target, environ: None)
    cache = tmp_path / "cache"
    with stub_hub({**guardrail_repos(), **upstream_repos()}) as hub:
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
        "PYTHONPATH": str(SOCKETS),
        "COSMOS3_TEST_SOCKETS": str(tmp_path / "sockets"),
    }
    done = subprocess.run(
        [PYTHON, "-c", ASK], env={**given, **own}, cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {name: Path(path) for name, path in json.loads(done.stdout.strip().splitlines()[-1]).items()}
    assert found["vae"].read_bytes() == b"stub, no weights"
    assert (found["sound"] / AVAE_CKPT).read_bytes() == b"derived from stub, no weights"
    assert (found["guardrail"] / "blocklist/custom/words").is_file()
    assert found["classifier"].is_relative_to(files.root / "hub") and found["classifier"].is_file()
    assert not (tmp_path / "sockets").exists()
