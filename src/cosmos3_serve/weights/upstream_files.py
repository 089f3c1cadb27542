"""What the framework engine loads besides its checkpoint, laid out so that upstream finds it without a network.

Upstream fetches by itself, by repository and branch or commit: the video autoencoder, the audio autoencoder, the text
processor where a checkpoint has none, the guardrails and their classifier. It does so with `uvx hf download`, which
would first install a package, and with transformers' lookup by name. It also converts the audio autoencoder in the
checkpoint's own folder. So its workers are given a folder of links: a Hub cache that holds only what this start proved,
a `uvx` that answers from it and fetches nothing, and the checkpoint with a converted copy of its audio autoencoder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import CheckpointUnavailable
from cosmos3_serve.weights import assets, downloader
from cosmos3_serve.weights.assets import Asset
from cosmos3_serve.weights.checkpoint import Checkpoint
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles
from cosmos3_serve.weights.hub import Proved, prove_checkpoint_asset
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.lock import process_lock
from cosmos3_serve.weights.manifest import DERIVED, HashCache, payload_digest, read_payload, write_atomic

log = logging.getLogger(__name__)

SOUND = "sound_tokenizer"
FOLDER = "framework"
MARKER = ".cosmos3-derived.json"
KEPT_BY_HUB = re.compile(r"hub/(CACHEDIR\.TAG$|\.locks/|[^/]+/\.no_exist/)")
# Of the repository that Nano's config names, for a checkpoint of another name: its processor and audio autoencoder.
NANO_PARTS = Asset(
    assets.NANO.repo,
    assets.NANO.revision,
    gated=False,
    probe_file=assets.AVAE.probe_file,
    purpose="audio autoencoder and text processor",
    files=(*assets.AVAE.files, "*.json", "*.jinja", "merges.txt", "vocab.json"),
)

Convert = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class UpstreamFiles:
    """Args:
    root: the folder of links; may be shared by services that proved the same.
    checkpoint: what upstream is given as its checkpoint; never a Hub snapshot that it would write into.
    assets: what was fetched for it beside the checkpoint and the guardrails.
    """

    root: Path
    checkpoint: Path
    assets: tuple[Proved, ...]

    def environ(self) -> dict[str, str]:
        """Variables of upstream's workers. Ray expands `${PATH}` where a worker starts."""
        hub = str(self.root / "hub")
        caches = dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"), hub)
        offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
        return {**caches, **offline, "PATH": f"{self.root / 'bin'}{os.pathsep}${{PATH}}"}


def provide_upstream(
    checkpoint: Checkpoint,
    guardrails: GuardrailFiles | None,
    cache_dir: Path,
    *,
    convert: Convert,
    environ: Mapping[str, str] | None = None,
) -> UpstreamFiles:
    """Fetch what lacks, check every byte, and lay it out below `cache_dir`. Blocks.

    Args:
        convert: upstream's conversion of the audio autoencoder in a folder, which writes `DERIVED` there.

    Raises:
        CheckpointUnavailable: codes as `fetch_snapshot`; `checkpoint_incomplete` too where the audio autoencoder cannot
            be converted.
        StartRefused: the cache cannot be written.
    """
    hub = Hub.from_environ(os.environ if environ is None else environ)
    hashes = HashCache(cache_dir / "checkpoint-hashes.json")
    proved = [prove_checkpoint_asset(one, hub, hashes) for one in needed_assets(checkpoint.id, checkpoint.path)]
    home = cache_dir / FOLDER
    home.mkdir(parents=True, exist_ok=True)
    with process_lock(cache_dir / f"{FOLDER}.lock"):
        tree = _Tree()
        tree.view("checkpoint", checkpoint.path, home, hashes, convert)
        known = [*proved, *(guardrails.assets if guardrails else ())]
        for asset in known:
            name = asset.repo.replace("/", "--")
            tree.view(f"views/{name}", asset.snapshot, home, hashes, convert)
            tree.repository(asset.repo, asset.revision, f"views/{name}")
        if checkpoint.id == assets.NANO.repo:
            tree.repository(checkpoint.id, checkpoint.revision, "checkpoint")
        program = Path(downloader.__file__)
        tree.texts["bin/uvx"] = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{program}" "$0" "$@"\n'
        root = tree.build(home)
        hashes.save()
    return UpstreamFiles(root, root / "checkpoint", tuple(proved))


def needed_assets(checkpoint: str, path: Path | None) -> tuple[assets.Asset, ...]:
    """What is fetched besides this checkpoint.

    Args:
        path: where the checkpoint lies; None: not fetched yet, and taken as Nano's layout.
    """
    vae, parts = _needs(path) if path is not None else (True, True)
    wanted = ((assets.WAN_VAE, vae), (NANO_PARTS, parts and checkpoint != assets.NANO.repo))
    return tuple(asset for asset, needed in wanted if needed)


def _needs(path: Path) -> tuple[bool, bool]:
    """Whether the config of a checkpoint asks for the video autoencoder, and for parts of Nano's repository. A layout
    without a config of the whole model takes Nano's, which asks for both."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))["model"]["config"]
        video, sound = config.get("tokenizer") or {}, config.get("sound_tokenizer")
        processor = (config.get("vlm_config") or {}).get("tokenizer") or {}
        vae = not Path(str(video.get("vae_path", ""))).is_file()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True, True
    bundled = (path / SOUND).is_dir() and not (sound or {}).get("avae_path")
    local = Path(str((sound or {}).get("avae_path", ""))).is_file()
    wants_sound = bool(config.get("sound_gen")) and not bundled and not local
    own = any((path / name).is_file() for name in ("tokenizer_config.json", "preprocessor_config.json"))
    return vae, wants_sound or (bool(processor.get("repository")) and not own)


class _Tree:
    """A folder of links and small texts, named by its own content: a different one never overwrites it."""

    def __init__(self) -> None:
        self.links: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def view(self, name: str, source: Path, home: Path, hashes: HashCache, convert: Convert) -> None:
        """`source` as `name`; where it has an audio autoencoder, with the converted copy in that one's place."""
        source = source.absolute()
        if not (source / SOUND).is_dir():
            self.links[name] = str(source)
            return
        for entry in sorted(source.iterdir()):
            self.links[f"{name}/{entry.name}"] = str(entry)
        self.links[f"{name}/{SOUND}"] = str(_converted(source / SOUND, home, hashes, convert))

    def repository(self, repo: str, revision: str, view: str) -> None:
        folder = f"hub/models--{repo.replace('/', '--')}"
        self.links[f"{folder}/snapshots/{revision}"] = f"../../../{view}"
        self.texts[f"{folder}/refs/main"] = revision

    def build(self, home: Path) -> Path:
        content = json.dumps([self.links, self.texts], sort_keys=True)
        root = home / hashlib.sha256(content.encode()).hexdigest()[:16]
        if root.is_dir() and self._intact(root):
            return root
        partial = Path(tempfile.mkdtemp(dir=home, prefix=".partial-"))
        try:
            partial.chmod(0o755)
            for name, target in self.links.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).symlink_to(target)
            for name, text in self.texts.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).write_text(text, encoding="utf-8")
                (partial / name).chmod(0o755 if name.startswith("bin/") else 0o644)
            _replace(partial, root)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return root

    def _intact(self, root: Path) -> bool:
        """Whether all of it is there and nothing else, but what huggingface_hub keeps for itself in a cache."""
        links, texts = {}, {}
        for folder, names, files in os.walk(root):
            for path in (Path(folder) / name for name in (*names, *files)):
                relative = path.relative_to(root).as_posix()
                if path.is_symlink():
                    links[relative] = str(path.readlink())
                elif path.is_file() and not KEPT_BY_HUB.match(relative):
                    texts[relative] = path.read_text(encoding="utf-8", errors="replace")
        return (links, texts) == (self.links, self.texts)


def _converted(source: Path, home: Path, hashes: HashCache, convert: Convert) -> Path:
    """A folder with links to the files of `source` and what upstream derives from them, made once per content.

    The derived files are hashed when they are made and checked at every start: one that differs is made anew, since
    what it derives from was just verified.
    """
    files = read_payload(source, hashes)
    derived = sorted(name.removeprefix(f"{SOUND}/") for name in DERIVED)
    links = {file.path: str(source / file.path) for file in files if file.path not in derived}
    own = payload_digest(file for file in files if file.path in links)
    target = home / "sound" / hashlib.sha256(f"{source}\0{own}".encode()).hexdigest()[:16]
    if _intact(target, links, derived, hashes):
        return target
    target.parent.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".partial-"))
    try:
        partial.chmod(0o755)
        for name, path in links.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).symlink_to(path)
        try:
            convert(partial)
            record = {name: hashes.sha256(partial / name)[1] for name in derived}
        except Exception as error:
            raise CheckpointUnavailable(
                f"the audio autoencoder of the checkpoint cannot be converted ({type(error).__name__})",
                code="checkpoint_incomplete",
                remedy="fetch or copy the checkpoint again: its folder sound_tokenizer/ is not as the framework has it",
            ) from error
        write_atomic(partial / MARKER, json.dumps(record, indent=1, sort_keys=True) + "\n")
        _replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    log.info("the audio autoencoder was converted for the framework: %s", ", ".join(derived))
    return target


def _intact(target: Path, links: Mapping[str, str], derived: list[str], hashes: HashCache) -> bool:
    if not target.is_dir():
        return False
    try:
        record: Any = json.loads((target / MARKER).read_text(encoding="utf-8"))
        found = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if not path.is_dir()}
        linked = {name: str(path.readlink()) for name, path in found.items() if path.is_symlink()}
        plain = {name: hashes.sha256(found[name])[1] for name in derived if not found[name].is_symlink()}
    except (OSError, ValueError, KeyError):
        return False
    return linked == links and plain == record and found.keys() == {*links, *derived, MARKER}


def _replace(partial: Path, target: Path) -> None:
    """Put `partial` in the place of `target`, whose content is not what it should be if it is there at all."""
    if target.is_dir() and not target.is_symlink():
        log.warning("%s is not what was laid out there: it is made anew", target)
        shutil.rmtree(target)
    partial.replace(target)
