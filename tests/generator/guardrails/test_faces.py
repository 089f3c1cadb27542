"""The face filter: frames as they may be delivered, or none at all. The filter is a double: the real one is gated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.guardrails import faces as module
from cosmos3_serve.generator.guardrails.faces import CHUNK, FaceGuard, load_face_guard
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles

FILES = GuardrailFiles(
    "diffusers", "stub/guardrail", "a" * 40, Path("/s"), Path("/n"), "stub/text", "b" * 40, Path("/t"), "granted"
)


class FilterDouble:
    """Blackens frames that begin with the value 7; `gives` replaces what it gives back."""

    def __init__(self, gives: Any = None) -> None:
        self.gives = gives
        self.sizes: list[int] = []

    def postprocess(self, frames: np.ndarray) -> Any:
        self.sizes.append(len(frames))
        if self.gives is not None:
            return self.gives(frames)
        for frame in frames:
            if frame[0, 0, 0] == 7:
                frame[:] = 0  # in place, as the real one
        return frames


def clip(count: int) -> np.ndarray:
    return np.full((count, 4, 6, 3), 9, np.uint8)


def test_what_has_no_face_passes_unchanged() -> None:
    frames = clip(2 * CHUNK + 3)
    inner = FilterDouble()
    made, checks = FaceGuard(inner, FILES).check_media(frames)
    assert np.array_equal(made, frames)
    assert inner.sizes == [CHUNK, CHUNK, 3]  # never the whole clip at once
    assert [(c.check, c.decision) for c in checks] == [
        ("media.face_blur", "passed"),
        ("media.content_safety", "not_run"),
    ]
    assert checks[0].revision == "a" * 40 and checks[0].ms > 0


def test_a_face_is_altered_and_said_so() -> None:
    frames = clip(3)
    frames[1, 0, 0, 0] = 7
    given = frames.copy()
    made, checks = FaceGuard(FilterDouble(), FILES).check_media(frames)
    assert not made[1].any() and made[0].all()
    assert checks[0].decision == "altered"
    assert np.array_equal(frames, given)  # the caller's frames are not written into


@pytest.mark.parametrize(
    "gives",
    [
        lambda frames: None,
        lambda frames: list(frames),
        lambda frames: frames[:-1],
        lambda frames: frames.astype(np.float32),
        lambda frames: frames[:, :2],
    ],
)
def test_anything_else_is_refused(gives: Any) -> None:
    with pytest.raises(ValueError, match="no such frames"):
        FaceGuard(FilterDouble(gives), FILES).check_media(clip(3))


def test_no_frames_are_not_passed() -> None:
    with pytest.raises(ValueError, match="no frames"):
        FaceGuard(FilterDouble(), FILES).check_media(clip(0))


def test_a_filter_that_does_not_work_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_face_filter", lambda files: FilterDouble(lambda frames: None))
    with pytest.raises(GuardrailsUnavailable) as refused:
        load_face_guard(FILES)
    assert refused.value.stable_code == "guardrail_selftest"


def test_a_filter_that_cannot_be_loaded_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(files: GuardrailFiles) -> Any:
        raise OSError("no file")

    monkeypatch.setattr(module, "load_face_filter", load)
    with pytest.raises(GuardrailsUnavailable) as refused:
        load_face_guard(FILES)
    assert refused.value.stable_code == "guardrail_load_failed"
