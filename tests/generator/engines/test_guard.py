"""Guardrails that are on and cannot run refuse the start; off is recorded as off."""

import pytest

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.engines import guard
from cosmos3_serve.generator.engines.guard import guard_record, make_guard


@pytest.mark.parametrize("spec, says", [(None, "not installed"), (object(), "does not run")])
def test_on_is_refused_with_the_way_out(monkeypatch, spec, says):
    monkeypatch.setattr(guard, "find_spec", lambda name: spec)
    with pytest.raises(GuardrailsUnavailable, match=says) as caught:
        make_guard(True)
    assert "--no-guardrails" in caught.value.remedy
    assert caught.value.exit_code == 3


def test_off_checks_nothing_and_says_so():
    off = make_guard(False)
    frames = object()
    assert off.check_prompt("x") == "not_run"
    assert off.check_media(frames) == (frames, "not_run")
    assert guard_record(off, prompt="not_run", media="not_run") == {
        "configured": False,
        "applied": False,
        "checks": [{"check": "prompt", "decision": "not_run"}, {"check": "media", "decision": "not_run"}],
    }
