import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract import defaults
from cosmos3_serve.contract.limits import MAX_TEMPLATE_CHARS
from cosmos3_serve.contract.templates import (
    DURATION_FIELDS,
    RESOLUTION_FIELDS,
    TEMPLATE_FIELDS,
    template_findings,
    template_problem,
)


def test_the_defaults_pass():
    for field in TEMPLATE_FIELDS:
        text = getattr(defaults, field.upper(), defaults.IMAGE_RESOLUTION_TEMPLATE)
        assert template_problem(text, TEMPLATE_FIELDS[field]) is None


@pytest.mark.parametrize(
    ("template", "allowed"),
    [
        ("", DURATION_FIELDS),
        ("no fields {{literal}}", DURATION_FIELDS),
        ("{duration}", DURATION_FIELDS),
        ("{duration:.2f} {fps:d} {fps:>5}", DURATION_FIELDS),
        ("{height:04d}x{width}", RESOLUTION_FIELDS),
    ],
)
def test_plain_fields_pass(template, allowed):
    assert template_problem(template, allowed) is None


@pytest.mark.parametrize(
    "template",
    [
        "{duration.__class__}",
        "{duration.__class__.__mro__}",
        "{duration[0]}",
        "{0}",
        "{}",
        "{name}",
        "{height}",
        "{duration!r}",
        "{duration!s:.1f}",
        "{duration:999999999f}",
        "{duration:.999999f}",
        "{duration:{fps}}",
        "{duration:*>9}",
        "{duration:d}",  # a float: str.format would raise in the engine
        "{duration:s}",
        "{fps:,}",
        "{duration",
        "duration}",
        "{fps}" * 33,
    ],
)
def test_everything_else_is_refused(template):
    assert template_problem(template, DURATION_FIELDS)


@given(st.text(alphabet="{}duration.fpsheightw_[]!:0123456789<>^", max_size=60))
def test_what_passes_is_short_and_never_raises(template):
    for allowed in (DURATION_FIELDS, RESOLUTION_FIELDS):
        if template_problem(template, allowed) is None:
            values = dict.fromkeys(allowed, 12) | ({"duration": 0.1} if "duration" in allowed else {})
            assert len(template.format(**values)) <= MAX_TEMPLATE_CHARS + 128 * len(template)


def test_findings_name_the_field_and_what_is_allowed():
    (finding,) = template_findings({"resolution_template": "{duration}", "duration_template": "{fps}"})
    assert finding.field == "resolution_template"
    assert "{height} and {width}" in finding.remedy
