"""Sound: upstream's own conversion of the audio autoencoder, run on a copy before any worker starts."""

from __future__ import annotations

from pathlib import Path


def convert_sound(folder: Path) -> None:
    """Write what upstream derives from the `config.json` and the safetensors file of `folder` beside them.

    Raises:
        Exception: whatever upstream raises for files that it cannot convert.
    """
    from cosmos_framework.inference.common.checkpoints import _materialize_avae_ckpt

    _materialize_avae_ckpt(str(folder))
