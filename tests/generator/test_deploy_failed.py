"""What Serve says of a replica that did not start becomes the refusal that its constructor meant."""

import pytest

from cosmos3_serve.errors import GuardrailsUnavailable, ServiceFailure, StartRefused
from cosmos3_serve.generator.serve import _deploy_failed

OFF = GuardrailsUnavailable


@pytest.mark.parametrize(
    ("last", "kind", "code", "detail"),
    [
        (
            "x.GuardrailsUnavailable: no words [guardrail_selftest]",
            GuardrailsUnavailable,
            "guardrail_selftest",
            "no words",
        ),
        ("x.GuardrailsUnavailable: no words", OFF, "guardrails_unavailable", "no words"),
        (
            "x.GuardrailsUnavailable: no words [guardrail_sel",
            GuardrailsUnavailable,
            "guardrails_unavailable",
            "no words",
        ),
        ("x.StartRefused: no device", StartRefused, "start_refused", "no device"),
        ("RuntimeError: odd", ServiceFailure, "deploy_failed", "the deployment did not start: RuntimeError: odd"),
    ],
)
def test_the_last_line_decides(last: str, kind: type[Exception], code: str, detail: str) -> None:
    trace = "\n".join(f'  File "module.py", line {i}' for i in range(40))
    failure = _deploy_failed({"application": "DEPLOY_FAILED", "message": f"failed to start\n{trace}\n{last}\n"})
    assert (type(failure), failure.stable_code, failure.detail) == (kind, code, detail)
