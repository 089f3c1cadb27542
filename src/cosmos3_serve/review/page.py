"""A page to read: the sheets, and beside them every prompt, note and hash as text, in its own script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from cosmos3_serve.review.tile import Tile

# No script, nothing from elsewhere: whatever a prompt holds, the page only shows it.
HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cosmos3 review</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src 'self'; style-src 'unsafe-inline'">
<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em;background:#f1f3f6;color:#181d26}img{max-width:100%}
table{border-collapse:collapse;background:#fff}td,th{border:1px solid #d6dbe2;padding:.4em .6em;text-align:left;
vertical-align:top}.bad{color:#981b1b}code{font-size:12px;word-break:break-all}</style></head><body>
"""
COLUMNS = ("sample", "prompt", "mode", "seed", "engine", "weights", "guardrails", "remarks", "files")


def write_page(path: Path, tiles: Sequence[Tile], sheets: Sequence[str]) -> None:
    """Write the page; `sheets` are the file names of the contact sheets beside it."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(HEAD)
        for sheet in sheets:
            out.write(f'<p><img src="{escape(sheet)}" alt="contact sheet"></p>\n')
        out.write("<table><tr>" + "".join(f"<th>{name}</th>" for name in COLUMNS) + "</tr>\n")
        for tile in tiles:
            out.write("<tr>" + "".join(_cells(tile)) + "</tr>\n")
        out.write("</table></body></html>\n")


def _cells(tile: Tile) -> list[str]:
    card, record = tile.card, tile.publication.provenance
    bad = [f"{card.code}: {card.message}"] if card.failed else []
    remarks = "<br>".join(escape(text) for text in [*bad, tile.problem, *tile.remarks] if text)
    files = "<br>".join(f"{escape(file.path)} <code>{file.sha256}</code>" for file in card.files)
    texts = (tile.title or card.name, card.prompt, card.mode, str(card.seed), tile.publication.engine, record.weights)
    cells = [*map(escape, (*texts, card.guardrails)), f'<span class="bad">{remarks}</span>', files]
    return [f"<td>{cell}</td>" for cell in cells]
