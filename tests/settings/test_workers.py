"""A number of workers, or a range: what is taken, how it is written, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import ReasonerSettings, WorkerRange


@pytest.mark.parametrize(
    ("text", "least", "most", "plain"),
    [("4", 4, 4, 4), (4, 4, 4, 4), ("2:8", 2, 8, "2:8"), (" 0 : 4 ", 0, 4, "0:4"), ("3:3", 3, 3, 3)],
)
def test_a_number_or_a_range_from_flag_variable_and_manifest(
    text: Any, least: int, most: int, plain: int | str
) -> None:
    settings = ReasonerSettings.load({"workers": text}, environ={})
    assert settings.workers == WorkerRange(least, most)
    assert ReasonerSettings.load({}, environ={"COSMOS3_REASONER_WORKERS": str(text)}) == settings
    assert settings.model_dump(mode="json")["workers"] == plain
    again = ReasonerSettings.load(settings.model_dump(mode="json", exclude_defaults=True), environ={})
    assert again == settings
    assert settings.workers.scales is (least != most)


@pytest.mark.parametrize("text", ["0", 0, "0:0", "8:2", "-1:4", "1:2000", "many", "2:", ":2", "1:2:3", True, 2.5, "٢"])
def test_what_is_no_size_is_refused_by_name(text: Any) -> None:
    with pytest.raises(UsageError) as refused:
        ReasonerSettings.load({"workers": text}, environ={})
    assert [e.field for e in refused.value.errors] == ["--workers"]
    assert "must be" in refused.value.errors[0].message or "begins above" in refused.value.errors[0].message
