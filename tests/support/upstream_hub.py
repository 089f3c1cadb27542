"""A stub Hub's repositories of what the framework loads by itself, and a double of its conversion. No weights."""

from __future__ import annotations

from pathlib import Path

from support.hub import Repo

from cosmos3_serve.weights.assets import NANO, WAN_VAE

AVAE_CKPT, AVAE_JSON = "avae_48k_noncausal_25hz_64ch.ckpt", "avae_48k_noncausal_25hz_64ch.json"
EMPTY = (2).to_bytes(8, "little") + b"{}"  # a safetensors file without tensors


def nano_repo() -> Repo:
    """In the layout of config.json beside safetensors; the config is not the framework's, so that Nano's own counts."""
    files = {
        "config.json": b"{}",
        "model.safetensors": EMPTY,
        "WEIGHTS.json": b'{"weights": "random"}',
        "tokenizer_config.json": b"{}",
        "sound_tokenizer/config.json": b'{"stub": true}',
        "sound_tokenizer/diffusion_pytorch_model.safetensors": EMPTY,
    }
    return Repo(NANO.revision, files)


def upstream_repos() -> dict[str, Repo]:
    return {
        NANO.repo: nano_repo(),
        WAN_VAE.repo: Repo(WAN_VAE.revision, {"Wan2.2_VAE.pth": b"stub, no weights", "README.md": b"card"}),
    }


def convert(folder: Path) -> None:
    """DOUBLE of upstream's: the same files, idempotent, refusing what it refuses."""
    if (folder / AVAE_CKPT).exists() and (folder / AVAE_JSON).exists():
        return
    if not (folder / "config.json").exists() or not (folder / "diffusion_pytorch_model.safetensors").exists():
        raise FileNotFoundError("AVAE shim")
    (folder / AVAE_CKPT).write_bytes(b"derived from stub, no weights")
    (folder / AVAE_JSON).write_bytes((folder / "config.json").read_bytes())
