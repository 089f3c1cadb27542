"""NVIDIA's figures: all of them, in one table, and the recipe shows the same one."""

from __future__ import annotations

from pathlib import Path

from cosmos3_serve.bench.plan_report import reference
from cosmos3_serve.bench.reference import ROWS, table

RECIPE = Path(__file__).parents[2] / "recipes" / "cosmos3-nano-reasoner" / "README.md"


def test_every_published_figure_is_in_the_table() -> None:
    lines = list(table())
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "2", "4", "8", "16"]
    first, last = lines[2], lines[-1]
    for figure in ("1.91 → 2.60", "61 → 58", "+36%"):
        assert figure in first
    for figure in ("21.39 → 37.68", "303 → 62", "760 → 134", "674 → 409", "2,738 → 4,822", "+76%"):
        assert figure in last
    assert [line.rstrip(" |").split("| ")[-1] for line in lines[2:]] == ["+36%", "+40%", "+41%", "+49%", "+76%"]


def test_what_was_published_for_one_row_alone_is_empty_elsewhere() -> None:
    assert all(row.affinity_latency_p50_ms is None for row in ROWS[:-1])
    assert "409" not in "".join(list(table())[2:-1])


def test_the_recipe_and_the_plan_show_it_as_nvidias() -> None:
    text = RECIPE.read_text(encoding="utf-8")
    assert "\n".join(table()) in text
    assert "Measured by NVIDIA" in text.partition("\n".join(table()))[0].rpartition("## ")[2]
    said = reference().markdown()
    assert "\n".join(table()) in said and "measured by NVIDIA, not by this project" in said
