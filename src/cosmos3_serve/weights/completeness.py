"""Is every file there and whole? Asked before anything is loaded, since a cut shard fails late and unclearly."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_MAX_HEADER = 256 * 1024 * 1024


def missing_payload(root: Path, *, framework: bool = False) -> list[str]:
    """One sentence for each thing that is missing or cut short below `root`; empty if the checkpoint is complete.

    Args:
        framework: the framework's own layouts are complete too: config.json beside *.safetensors, and DCP.
    """
    index = _json(root / "model_index.json")
    if index is None and framework and (own := _framework_layout(root)) is not None:
        return own
    if index is None:
        return ["model_index.json is missing or no JSON object (a converted Cosmos3 checkpoint has one)"]
    problems = []
    for name, value in sorted(index.items()):
        if name.startswith("_") or not (isinstance(value, list) and len(value) == 2 and all(value)):
            continue
        problems += _component(root / name, name)
    return problems + _files(root)


def _framework_layout(root: Path) -> list[str] | None:
    """Problems of a layout that the framework loads by itself; None if this is no such (source: its CheckpointType)."""
    if any(root.glob("*.safetensors")) or any(root.glob("*.safetensors.index.json")):
        return ([] if (root / "config.json").is_file() else ["config.json is missing"]) + _files(root)
    if any(root.glob("*.distcp")):
        return [] if (root / ".metadata").is_file() else [".metadata is missing"]
    return None


def _files(root: Path) -> list[str]:
    problems = []
    for shard_index in sorted(root.rglob("*.safetensors.index.json")):
        problems += _shards(root, shard_index)
    for file in sorted(root.rglob("*.safetensors")):
        cut = _cut_short(file)
        if cut:
            problems.append(f"{file.relative_to(root).as_posix()} {cut}")
    return problems


def _component(folder: Path, name: str) -> list[str]:
    if not folder.is_dir():
        return [f"folder {name}/ is missing"]
    if "tokenizer" in name and "sound" not in name:
        return [] if (folder / "tokenizer_config.json").is_file() else [f"{name}/tokenizer_config.json is missing"]
    if name == "scheduler":
        return [] if (folder / "scheduler_config.json").is_file() else [f"{name}/scheduler_config.json is missing"]
    problems = [] if (folder / "config.json").is_file() else [f"{name}/config.json is missing"]
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.safetensors.index.json")):
        problems.append(f"{name}/ holds no safetensors file")
    return problems


def _shards(root: Path, index: Path) -> list[str]:
    where = index.relative_to(root).as_posix()
    value = _json(index)
    weight_map = value.get("weight_map") if value else None
    if not isinstance(weight_map, dict):
        return [f"{where} has no weight_map"]
    names = sorted({str(v) for v in weight_map.values()})
    return [f"{where} names {n}, which is missing" for n in names if not (index.parent / n).is_file()]


def _cut_short(file: Path) -> str | None:
    """A safetensors file declares in its header where its last tensor ends."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(_MAX_HEADER, size - 8):
                return "has a broken header"
            header = json.loads(stream.read(length))
        end = max((t["data_offsets"][1] for k, t in header.items() if k != "__metadata__"), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return "has a broken header"
    return None if size == 8 + length + end else f"has {size} bytes instead of {8 + length + end}"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
