"""The seam for the media check: off is recorded as off, on never without a check."""

from pathlib import Path

import numpy as np
import pytest

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.engines.guard import engine_record, make_guard, upstream_checks
from cosmos3_serve.generator.guardrails import faces
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles

FILES = GuardrailFiles(
    "diffusers", "stub/guardrail", "a" * 40, Path("/s"), Path("/n"), "stub/text", "b" * 40, Path("/t"), "granted"
)


def test_off_checks_nothing_and_says_so() -> None:
    off = make_guard(None)
    frames = np.zeros((1, 2, 2, 3), np.uint8)
    given, checks = off.check_media(frames)
    assert given is frames and [(c.check, c.decision) for c in checks] == [("media", "not_run")]
    assert engine_record(off) == {
        "configured": False, "applied": False, "checks": [{"check": "media", "decision": "not_run"}],
    }  # fmt: skip


def test_on_loads_the_filter_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(files: GuardrailFiles) -> object:
        raise GuardrailsUnavailable("no", code="guardrail_load_failed")

    monkeypatch.setattr(faces, "load_face_filter", load)
    with pytest.raises(GuardrailsUnavailable):
        make_guard(FILES)


def test_on_says_which_checks_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Filter:
        def postprocess(self, frames: np.ndarray) -> np.ndarray:
            return frames

    monkeypatch.setattr(faces, "load_face_filter", lambda files: Filter())
    record = engine_record(make_guard(FILES))
    assert (record["configured"], record["applied"]) == (True, True)
    assert [row["check"] for row in record["checks"]] == ["media.face_blur", "media.content_safety"]


@pytest.mark.parametrize(
    ("configured", "modality", "decision"),
    [(True, "image", "upstream"), (True, "transfer", "not_run"), (False, "image", "not_run")],
)
def test_the_frameworks_own_checks_are_not_claimed(configured: bool, modality: str, decision: str) -> None:
    assert [c.decision for c in upstream_checks(configured, modality=modality)] == [decision]
