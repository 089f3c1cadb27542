"""The media check of the diffusers engine: faces are made unrecognisable before anything is encoded.

The package's classifier of video content is switched off by its authors (too many false positives), so it does not run
here either, and every record says `not_run` for it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.engines.inputs import Frames
from cosmos3_serve.generator.guardrails.packages import load_face_filter
from cosmos3_serve.generator.guardrails.record import CheckRecord
from cosmos3_serve.weights.guardrail_assets import OPT_OUT, GuardrailFiles

FACES = "media.face_blur"
CONTENT = "media.content_safety"
CHUNK = 16  # frames on the device at once: the filter turns them into float32


class FaceGuard:
    """
    Args:
        inner: the package's filter; `postprocess` takes uint8 frames [T, H, W, 3], RGB, and gives as many back.
    """

    configured = True

    def __init__(self, inner: Any, files: GuardrailFiles) -> None:
        self._inner = inner
        self._files = files

    @property
    def loaded(self) -> list[CheckRecord]:
        """What will be checked, before anything was."""
        return self._records("not_run", 0.0)

    def to(self, device: Any) -> None:
        self._inner.to(device)

    def check_media(self, frames: Frames) -> tuple[Frames, list[CheckRecord]]:
        """Frames as they may be delivered, and what was decided.

        Raises:
            ValueError: the filter gave back something else than as many frames of the same size.
        """
        began = time.perf_counter()
        parts = []
        for start in range(0, len(frames), CHUNK):
            given = np.ascontiguousarray(frames[start : start + CHUNK])
            made = self._inner.postprocess(given.copy())  # it writes into what it is given
            if not isinstance(made, np.ndarray) or made.shape != given.shape or made.dtype != given.dtype:
                raise ValueError("the face filter gave back no such frames")
            parts.append(made)
        if not parts:
            raise ValueError("no frames")
        result: Frames = np.concatenate(parts)
        decision = "passed" if np.array_equal(result, frames) else "altered"
        return result, self._records(decision, (time.perf_counter() - began) * 1000.0)

    def _records(self, decision: Any, ms: float) -> list[CheckRecord]:
        name = f"{self._files.repo} face_blur_filter"
        return [CheckRecord(FACES, decision, name, self._files.revision, ms), CheckRecord(CONTENT, "not_run")]


def load_face_guard(files: GuardrailFiles) -> FaceGuard:
    """Load the filter and try it on a grey frame.

    Raises:
        GuardrailsUnavailable: `guardrail_load_failed` or `guardrail_selftest`.
    """
    try:
        guard = FaceGuard(load_face_filter(files), files)
    except GuardrailsUnavailable:
        raise
    except Exception as error:
        raise GuardrailsUnavailable(
            f"the face filter cannot be loaded ({type(error).__name__})",
            code="guardrail_load_failed",
            remedy=f"see the log; {OPT_OUT}",
        ) from error
    try:
        guard.check_media(np.full((1, 64, 64, 3), 128, np.uint8))
    except Exception as error:
        raise GuardrailsUnavailable(
            f"the face filter does not work ({type(error).__name__})",
            code="guardrail_selftest",
            remedy=f"repair its package or its files; {OPT_OUT}",
        ) from None
    return guard
