"""DOUBLE: asks for everything that upstream asks for while it loads, in upstream's way."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download

from cosmos_framework.inference.common.checkpoints import _materialize_avae_ckpt

VAE = ("Wan-AI/Wan2.2-TI2V-5B", "--revision", "921dbaf3f1674a56f47e83fb80a34bac8a8f203e", "Wan2.2_VAE.pth")
NANO = ("nvidia/Cosmos3-Nano", "--revision", "main", "--include", "sound_tokenizer/*")
GUARDRAIL1 = ("nvidia/Cosmos-Guardrail1", "--revision", "d6d4bfa899a71454a700907664f3e88f503950cf", "--include", "*")


def load(setup: Any) -> list[str]:
    """What was found, by name."""
    found = []
    if download(*VAE).is_file():
        found.append("vae")
    for folder in (Path(setup.checkpoint_path), download(*NANO)):
        _materialize_avae_ckpt(str(folder / "sound_tokenizer"))
        found.append("sound")
    if setup.guardrails:
        if any((download(*GUARDRAIL1) / "blocklist" / "custom").iterdir()):
            found.append("guardrail")
        if Path(hf_hub_download("Qwen/Qwen3Guard-Gen-0.6B", "config.json")).is_file():
            found.append("classifier")
        if (Path(os.environ["NLTK_DATA"].split(os.pathsep)[0]) / "tokenizers").is_dir():
            found.append("nltk")
    return found


def download(*question: str) -> Path:
    command = ["uvx", "--with", "click", "--with", "tqdm<4.70", "hf@1.16.4", "download", "--format=json", *question]
    return Path(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["path"])
