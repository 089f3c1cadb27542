"""The model cache: one mounted folder for everything fetched at run time, and the variables that lead there.

`NPA_MODEL_CACHE_DIR` names the folder. Where it is not set, a cache that was announced by one of the other variables,
or is simply mounted, lies at the standard mount path. It must be a real file system with symbolic links (the Hub's
cache is made of them, NLTK's copy must not be), never a bucket.

The variables must be set before Ray, huggingface_hub or NLTK is imported: all three read them once.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.settings import FALSE_WORDS, TRUE_WORDS

log = logging.getLogger(__name__)

DIR = "NPA_MODEL_CACHE_DIR"
PVC = "NPA_MODEL_CACHE_PVC"
HOST_PATH = "NPA_MODEL_CACHE_HOST_PATH"
FILESYSTEM = "NPA_MODEL_CACHE_FILESYSTEM"
NAMESPACE = "NPA_MODEL_CACHE_NAMESPACE"
DISABLED = "NPA_MODEL_CACHE_DISABLED"

MOUNT = Path("/opt/npa-model-cache")
CLAIM = "npa-model-cache"
HOST_DEFAULT = "/var/lib/npa/model-cache"

FAMILY = {
    "HF_HOME": "huggingface",
    "HF_HUB_CACHE": "huggingface/hub",
    "HUGGINGFACE_HUB_CACHE": "huggingface/hub",
    "TRANSFORMERS_CACHE": "huggingface/hub",
    "HF_DATASETS_CACHE": "huggingface/datasets",
    "HF_XET_CACHE": "huggingface/xet",
    "TORCH_HOME": "torch",
    "COSMOS_HF_CACHE": "huggingface",
    "NLTK_DATA": "nltk",
    "NPA_COSMOS3_CACHE": "cosmos3",
    "COSMOS_DOWNLOAD_CACHE_DIR": "cosmos3/downloads",
}
# What else a process needs to know of the Hub. No token: it would be shown by Ray's tools, and workers fetch nothing.
CARRIED = (*FAMILY, "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
# What fixes its folders when it is imported, and the variable that it fixes.
READ_AT_IMPORT = {"huggingface_hub": "HF_HOME", "nltk": "NLTK_DATA"}
_REMEDY = f"name an absolute path on a local or shared file system: {DIR}"


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Args:
    source: the variable that decided, or `mount` where the standard folder is simply there.
    claim, namespace, host_path: what a manifest mounts there; for the record, nothing here reads them.
    """

    root: Path
    source: str
    claim: str = CLAIM
    namespace: str = ""
    host_path: str = HOST_DEFAULT

    def variables(self) -> dict[str, str]:
        return {name: str(self.root / folder) for name, folder in FAMILY.items()}

    def make(self) -> None:
        """Create the whole family and prove that files and links work there.

        Raises:
            StartRefused: `model_cache_unwritable` or `model_cache_no_symlinks`.
        """
        for folder in sorted({self.root / folder for folder in FAMILY.values()}):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unwritable(self.root, error) from None
        _prove(self.root)


def find_model_cache(environ: Mapping[str, str], *, mount: Path = MOUNT) -> ModelCache | None:
    """The cache that the environment names, or None: then every tool keeps its own default.

    Raises:
        StartRefused: `model_cache_invalid` (no absolute path, or an unreadable switch), `model_cache_bucket`,
            `model_cache_in_package`.
    """
    if _flag(environ):
        return None
    given = {name: environ.get(name, "").strip() for name in (DIR, PVC, HOST_PATH, FILESYSTEM, NAMESPACE)}
    for name, value in given.items():
        if "://" in value:
            raise StartRefused(
                f"{name} is a URL: a model cache needs a file system with symbolic links, no bucket has them",
                code="model_cache_bucket",
                remedy=_REMEDY,
            )
    for name in (DIR, HOST_PATH):
        if given[name] and not Path(given[name]).is_absolute():
            raise StartRefused(f"{name} is no absolute path", code="model_cache_invalid", remedy=_REMEDY)
    announced = next((name for name in (PVC, FILESYSTEM, HOST_PATH) if given[name]), None)
    if given[DIR]:
        root, source = Path(given[DIR]), DIR
    elif announced is not None:
        root, source = mount, announced
    elif mount.is_dir():
        root, source = mount, "mount"
    else:
        return None
    package = Path(__file__).resolve().parents[1]
    if root.resolve().is_relative_to(package):
        raise StartRefused(
            "the model cache lies in the installed package: weights never go there",
            code="model_cache_in_package",
            remedy=_REMEDY,
        )
    return ModelCache(
        root, source, given[PVC] or CLAIM, given[NAMESPACE], given[HOST_PATH] or HOST_DEFAULT
    )  # fmt: skip


def settle_model_cache(
    environ: MutableMapping[str, str] | None = None, *, mount: Path = MOUNT, modules: Iterable[str] | None = None
) -> ModelCache | None:
    """Find, make and export the cache: after this every tool of this process and of its children fetches there.

    A folder that is merely mounted yields to `HF_HOME` and `HF_HUB_CACHE` where an operator set them.

    Raises:
        StartRefused: as `find_model_cache` and `ModelCache.make`; `model_cache_late` when a module that reads these
            variables at import was imported before.
    """
    environ = os.environ if environ is None else environ
    cache = find_model_cache(environ, mount=mount)
    if cache is None:
        return None
    if cache.source == "mount" and any(environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE")):
        return None
    wanted = cache.variables()
    changed = sorted(name for name, value in wanted.items() if environ.get(name) != value)
    refuse_late(environ, wanted, modules=modules)
    cache.make()
    overridden = [name for name in changed if environ.get(name)]
    if overridden:
        log.warning("%s decides: it replaces %s", cache.source, ", ".join(overridden))
    environ.update(wanted)
    return cache


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """What workers on other nodes must be given, since they do not inherit this process's environment."""
    return {name: environ[name] for name in CARRIED if environ.get(name)}


def refuse_late(environ: Mapping[str, str], wanted: Mapping[str, str], *, modules: Iterable[str] | None = None) -> None:
    """
    Raises:
        StartRefused: `model_cache_late`: a loaded module has read another value of a variable that is to be set.
    """
    loaded = set(sys.modules if modules is None else modules)
    for module, name in READ_AT_IMPORT.items():
        if module in loaded and name in wanted and environ.get(name) != wanted[name]:
            raise StartRefused(
                f"{name} would be set too late: {module} was imported before and has read its folders",
                code="model_cache_late",
                remedy=f"set {name} in the environment before the service starts",
            )


def _flag(environ: Mapping[str, str]) -> bool:
    word = environ.get(DISABLED, "").strip().lower()
    if word and word not in TRUE_WORDS | FALSE_WORDS:
        raise StartRefused(
            f"{DISABLED} is none of 1/true/yes/on, 0/false/no/off",
            code="model_cache_invalid",
            remedy=f"unset {DISABLED}",
        )
    return word in TRUE_WORDS


def _prove(root: Path) -> None:
    """Write a file, link to it, read through the link, rename the link: what the Hub's cache does."""
    name = f".probe-{secrets.token_hex(8)}"
    file, link, moved = root / name, root / f"{name}.link", root / f"{name}.moved"
    try:
        try:
            file.write_bytes(name.encode())
        except OSError as error:
            raise _unwritable(root, error) from None
        try:
            link.symlink_to(file.name)
            link.replace(moved)
            whole = moved.is_symlink() and moved.read_bytes() == name.encode()
        except OSError:
            whole = False
        if not whole:
            raise StartRefused(
                "the model cache has no symbolic links: it is no real file system",
                code="model_cache_no_symlinks",
                remedy=_REMEDY,
            )
    finally:
        for path in (moved, link, file):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                log.warning("a probe file could not be removed from the model cache")


def _unwritable(root: Path, error: OSError) -> StartRefused:
    return StartRefused(
        f"the model cache {root} cannot be written ({error.strerror or type(error).__name__})",
        code="model_cache_unwritable",
        remedy=f"mount it writable, name another folder with {DIR}, or set {DISABLED}=1",
    )
