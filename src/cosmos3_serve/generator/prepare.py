"""Everything that can be refused before Ray starts: tokens, engine, guardrails, roots, output root, checkpoint."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import NamedTuple

from cosmos3_serve.contract.applicable import refuse_ignored
from cosmos3_serve.contract.rules import check_placement
from cosmos3_serve.contract.wire import is_safe_name
from cosmos3_serve.errors import StartRefused, UsageError
from cosmos3_serve.generator.defaults_file import read_defaults
from cosmos3_serve.generator.engines.framework.sound import convert_sound
from cosmos3_serve.generator.engines.framework.start import prepare_framework
from cosmos3_serve.generator.guardrails.packages import require_packages
from cosmos3_serve.generator.ledger.files import LOCK, NO_SPACE, PRIVATE, RootLock
from cosmos3_serve.generator.replica.hardware import admit_machine
from cosmos3_serve.generator.replica.system import accelerators
from cosmos3_serve.service.revision import source_revision
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.storage.roots import AllowedRoots
from cosmos3_serve.weights.cache_dir import default_cache
from cosmos3_serve.weights.checkpoint import Checkpoint, resolve_checkpoint
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles, prove_guardrails
from cosmos3_serve.weights.hub import Proved
from cosmos3_serve.weights.precision import require_plain
from cosmos3_serve.weights.upstream_files import UpstreamFiles, provide_upstream


class Prepared(NamedTuple):
    """Settings with absolute paths, the checkpoint, our source revision; what guardrails stand on, or None; what the
    framework engine loads besides, None for another engine."""

    settings: GeneratorSettings
    checkpoint: Checkpoint
    revision: str
    guardrails: GuardrailFiles | None
    upstream: UpstreamFiles | None = None

    @property
    def assets(self) -> tuple[Proved, ...]:
        """Everything that was fetched and checked beside the checkpoint."""
        return (*(self.guardrails.assets if self.guardrails else ()), *(self.upstream.assets if self.upstream else ()))


def prepare(settings: GeneratorSettings) -> Prepared:
    """Every check that needs no cluster. Guardrails come before the checkpoint: their refusals are cheap.

    Raises:
        StartRefused, UsageError: with what to change.
    """
    settings, revision, cache = check(settings)
    guardrails = prove(settings, cache)
    framework = settings.engine == "framework"
    checkpoint = resolve_checkpoint(settings.checkpoint, cache, framework=framework)
    if not framework:
        require_plain(checkpoint.path, checkpoint.id)
    upstream = provide_upstream(checkpoint, guardrails, cache, convert=convert_sound) if framework else None
    return Prepared(settings, checkpoint, revision, guardrails, upstream)


class Checked(NamedTuple):
    """Settings with absolute paths, our source revision, and the cache folder."""

    settings: GeneratorSettings
    revision: str
    cache: Path


def check(settings: GeneratorSettings, *, keep: bool = True) -> Checked:
    """The checks that fetch nothing.

    Args:
        keep: leave the output root in place; False removes again what had to be made to try it.

    Raises:
        StartRefused, UsageError: with what to change.
    """
    if settings.engine is None:
        raise StartRefused(
            "no engine was chosen", code="engine_not_found", remedy="--engine diffusers or --engine framework"
        )
    if not is_safe_name(settings.model):
        raise UsageError(f"--model {settings.model!r} is not a safe name", remedy="use A-Z a-z 0-9 . _ -")
    check_placement(settings)
    refuse_ignored(settings)
    if settings.engine == "framework":
        prepare_framework(settings)
    TokenBook.from_environ()
    revision = source_revision()
    AllowedRoots.parse(settings.allowed_s3_roots)
    admit_machine(settings, [device["compute_capability"] for device in accelerators()])
    root = _writable(settings.output_path, keep=keep)
    if (root / PRIVATE / LOCK).exists():  # here, before a cluster starts; the ingress takes it for good
        RootLock(root).release()
    cache = (settings.cache_dir or default_cache()).expanduser().absolute()
    defaults = settings.defaults_file and settings.defaults_file.expanduser().absolute()
    read_defaults(defaults)
    settings = settings.model_copy(update={"output_path": root, "cache_dir": cache, "defaults_file": defaults})
    return Checked(settings, revision, cache)


def prove(settings: GeneratorSettings, cache: Path) -> GuardrailFiles | None:
    """What the guardrails stand on, None with `--no-guardrails`.

    Raises:
        GuardrailsUnavailable: guardrails are on and something is missing, altered or not permitted.
    """
    if not settings.guardrails:
        return None
    engine = settings.engine or "framework"
    require_packages(engine)
    return prove_guardrails(engine, revision=settings.guardrail_revision, cache_dir=cache)


def _writable(path: Path, *, keep: bool) -> Path:
    """The output root, made if missing, after a file was written there. Raises StartRefused."""
    root = path.expanduser().absolute()
    probe = root / PRIVATE / f"probe-{secrets.token_hex(8)}"
    made = [folder for folder in (probe.parent, *probe.parent.parents) if not folder.exists()]
    try:
        probe.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        if error.errno in NO_SPACE and (root / PRIVATE / LOCK).exists():
            return root.resolve()  # in use before: retention makes room once the ledger is open
        raise StartRefused(
            f"the output root {path} cannot be written ({error.strerror})",
            code="output_root",
            remedy="name a writable directory: --output-path, NPA_COSMOS3_RAY_OUTPUT_DIR",
        ) from None
    finally:
        if not keep:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
    return root.resolve()
