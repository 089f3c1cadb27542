"""The seam for the media check: what a guard answers, and the guard of an operator who opted out.

Checks fail closed: whoever calls a guard turns a raised exception into a failed sample, never into a passed one. Texts
are checked before a job reaches any engine (`generator/guardrails/gate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cosmos3_serve.generator.engines.inputs import Frames
from cosmos3_serve.generator.guardrails.record import CheckRecord, guard_record
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles


class MediaGuard(Protocol):
    """Checks media before anything is written. `configured` says what the operator asked for."""

    @property
    def configured(self) -> bool: ...

    @property
    def loaded(self) -> Sequence[CheckRecord]:
        """A record per check, as it stands where nothing was checked."""
        ...

    def to(self, device: Any) -> None: ...

    def check_media(self, frames: Frames) -> tuple[Frames, Sequence[CheckRecord]]:
        """Frames [T, H, W, 3] as they may be delivered (a check may blur faces), and the records."""
        ...


class NoGuard:
    """No checks, and says so in every record."""

    configured = False
    loaded = (CheckRecord("media", "not_run"),)

    def to(self, device: Any) -> None: ...

    def check_media(self, frames: Frames) -> tuple[Frames, Sequence[CheckRecord]]:
        return frames, self.loaded


def make_guard(files: GuardrailFiles | None) -> MediaGuard:
    """The guard over what was proved at the start, or none with `--no-guardrails` (None).

    Raises:
        GuardrailsUnavailable: the check cannot be loaded or does not work.
    """
    if files is None:
        return NoGuard()
    from cosmos3_serve.generator.guardrails.faces import load_face_guard

    return load_face_guard(files)


def upstream_checks(configured: bool, *, modality: str) -> list[CheckRecord]:
    """What the framework engine checks by itself, inside and after generation; nothing for transfer. It says what it
    blocks and is silent about what it passes, so no decision is claimed for it."""
    runs = configured and modality != "transfer"
    return [CheckRecord("output.framework", "upstream" if runs else "not_run")]


def engine_record(guard: MediaGuard) -> dict[str, Any]:
    """What an engine says of itself: `applied` once its checks are loaded and were tried out."""
    return guard_record(guard.configured, guard.loaded) | {"applied": guard.configured}
