"""Dynamo's frontend with instant workers on loopback, without etcd and NATS, for a run side by side with ours.

Needs a Python that has `ai-dynamo` 1.6.1 (see benchmarks/README.md); `find` says whether there is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from measure.result import demand

PYTHON_ENV = "COSMOS3_DYNAMO_PYTHON"
ASK = "from importlib.metadata import version; print(version('ai-dynamo'))"
START_S = 90.0
WORKERS = 2
# Room for bodies of 8 MiB of video, and time for 64 of them at once on a small machine.
LIMITS = {
    "DYN_HTTP_BODY_LIMIT_MB": "64",
    "DYN_MM_MAX_DATA_URL_MB": "32",
    "DYN_TCP_REQUEST_TIMEOUT": "110",
    "DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS": "110",
}


def find() -> tuple[Path, str] | None:
    """The Python named by the environment, and Dynamo's version there."""
    name = os.environ.get(PYTHON_ENV)
    if not name:
        return None
    asked = subprocess.run([name, "-c", ASK], capture_output=True, text=True)
    demand(asked.returncode == 0, f"{PYTHON_ENV} names a Python without ai-dynamo")
    return Path(name), asked.stdout.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_model(folder: Path) -> None:
    """A tokenizer and a config, enough for a frontend that templates and detokenizes; no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<end>", "<turn>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    words = " ".join(f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nrst")
    tokenizer.train_from_iterator([words, f"{words} what happens in this video user assistant"] * 20, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 600,
        "max_position_embeddings": 8192, "bos_token_id": 0, "eos_token_id": 0, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    template = (
        "{% for m in messages %}<turn>{{ m['role'] }} {% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{% endfor %}<turn>assistant "
    )
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<end>", "eos_token": "<end>",
             "model_max_length": 8192, "chat_template": template}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "bos_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def loopback(folder: Path) -> dict[str, str]:
    """The environment in which all of Dynamo stays on this machine, without etcd and NATS."""
    hosts = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST")
    environ = {
        **os.environ, **LIMITS, **dict.fromkeys(hosts, "127.0.0.1"), "HOME": str(folder),
        "HF_HUB_OFFLINE": "1", "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "kv"),
        "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq", "DYN_LOG": "error",
    }  # fmt: skip
    environ.pop("PYTHONPATH", None)
    return environ


def instances(port: int) -> int:
    """How many workers a frontend can send to; 0 while it serves no model or does not answer."""
    with contextlib.suppress(OSError, ValueError):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as said:
            found = json.load(said).get("instances") or []
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as said:
            models = json.load(said)["data"]
        return len({str(i.get("instance_id")) for i in found}) if models else 0
    return 0


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """The last one first; what does not go in a quarter of a minute is killed."""
    for process in reversed(processes):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Dynamo:
    """`with` starts it: round robin with session affinity, as the service beside it."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    @property
    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def asked(self) -> int:
        """How many requests the workers had until a tenth of a second ago."""
        time.sleep(0.3)
        return sum(int(self._count(n).read_text() or 0) for n in range(WORKERS) if self._count(n).exists())

    def _count(self, number: int) -> Path:
        return self._folder / f"asked-{number}"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        model = self._folder / "model"
        make_model(model)
        environ = loopback(self._folder)
        frontend = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port)]
        routing = ["--router-mode", "round-robin", "--router-session-affinity-ttl-secs", "300"]
        worker = str(Path(__file__).with_name("dynamo_worker.py"))
        lines = [[*frontend, *routing], *([worker, str(model), str(self._count(n))] for n in range(WORKERS))]
        with (self._folder / "log").open("ab") as log:
            for line in lines:
                command = [str(self._python), *line]
                self._processes.append(subprocess.Popen(command, env=environ, cwd=self._folder, stdout=log, stderr=log))
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            time.sleep(0.5)
            ended = [p.returncode for p in self._processes if p.poll() is not None]
            demand(not ended, f"a process of Dynamo ended: {(self._folder / 'log').read_text()[-600:]}")
            if instances(self.port) >= WORKERS:
                return
        demand(False, f"Dynamo was not ready in {START_S:.0f} s: {(self._folder / 'log').read_text()[-600:]}")

    def stop(self) -> None:
        end(self._processes)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
