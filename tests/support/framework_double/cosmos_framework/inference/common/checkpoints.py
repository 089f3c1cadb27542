"""DOUBLE: upstream's conversion of the audio autoencoder, which it also calls by itself where it finds one."""

from pathlib import Path

from support.upstream_hub import convert


def _materialize_avae_ckpt(local_dir: str) -> None:
    convert(Path(local_dir))
