"""The contact sheet: every sample of a publication at a glance, failures and random weights plainly visible.

Memory is bounded by one page and one frame: media are fetched one at a time into a scratch directory, and a publication
of many samples becomes several pages.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image

from cosmos3_serve.errors import Cosmos3Error, UsageError
from cosmos3_serve.review import tile
from cosmos3_serve.review.frames import Frame, Glimpse, glimpse
from cosmos3_serve.review.paint import BACKGROUND, FAINT, INK, Painter
from cosmos3_serve.review.publication import Card, Publication, read_publication
from cosmos3_serve.review.tile import Tile

MAX_COLUMNS = 5
TILES_PER_PAGE = 40
MARGIN, GAP, HEADER = 28, 16, 92
UNVERIFIED = "publication_damaged"
GUARDRAILS = {True: "guardrails on", False: "guardrails off", None: "guardrails unknown"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the tiles of one page go; `height` is a tile's, in pixels."""

    columns: int
    rows: int
    height: int = tile.HEIGHT

    @classmethod
    def of(cls, count: int, height: int = tile.HEIGHT) -> Grid:
        columns = max(1, min(MAX_COLUMNS, math.ceil(math.sqrt(count * 1.2))))
        return cls(columns, math.ceil(count / columns), height)

    @property
    def size(self) -> tuple[int, int]:
        width = 2 * MARGIN + self.columns * tile.WIDTH + (self.columns - 1) * GAP
        height = HEADER + MARGIN + self.rows * self.height + (self.rows - 1) * GAP
        return max(width, 2 * MARGIN + 2 * tile.WIDTH), height

    def place(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self.columns)
        return MARGIN + column * (tile.WIDTH + GAP), HEADER + row * (self.height + GAP)


def write_contact_sheet(location: str, output: Path, environ: Mapping[str, str] | None = None) -> list[Path]:
    """Draw the publication at `location` (S3 or directory) into `output`; further pages get `-2`, `-3` … before `.png`.

    Returns the files written, in order.

    Raises:
        UsageError: `output` does not end in .png.
        NotFound, InputError, StorageFailure: as `read_publication`. Media that cannot be fetched or decoded are shown
            as such on their tile, not raised.
    """
    return asyncio.run(draw_contact_sheet(location, output, environ))


async def draw_contact_sheet(location: str, output: Path, environ: Mapping[str, str] | None = None) -> list[Path]:
    """`write_contact_sheet` for callers on an event loop."""
    if output.suffix.lower() != ".png":
        raise UsageError("a contact sheet is written as PNG", remedy="let the output file end in .png")
    written = []
    with tempfile.TemporaryDirectory(prefix="cosmos3-review-") as folder:
        scratch = Path(folder)
        publication = await read_publication(location, scratch, environ)
        pages = pages_of(publication.cards)
        for number, cards in enumerate(pages, 1):
            tiles = [Tile(publication, card, *await look(publication, card, scratch)) for card in cards]
            path = page_path(output, number)
            await draw_page([publication], tiles, path, number, len(pages))
            written.append(path)
    return written


def pages_of(cards: Sequence[T]) -> list[Sequence[T]]:
    return [cards[i : i + TILES_PER_PAGE] for i in range(0, len(cards), TILES_PER_PAGE)]


def page_path(output: Path, number: int) -> Path:
    return output if number == 1 else output.with_name(f"{output.stem}-{number}{output.suffix}")


async def draw_page(
    publications: Sequence[Publication], tiles: Sequence[Tile], path: Path, number: int, total: int
) -> None:
    """One page of tiles into `path`, atomically; `publications` are all that the sheet is about."""
    note = f"page {number} of {total}" if total > 1 else ""
    await asyncio.to_thread(_draw, publications, tiles, path, note)


def _draw(publications: Sequence[Publication], tiles: Sequence[Tile], path: Path, note: str) -> None:
    remarks = any(item.remarks for item in tiles)
    grid = Grid.of(len(tiles), tile.HEIGHT + (tile.REMARK if remarks else 0))
    page = Image.new("RGB", grid.size, BACKGROUND)
    painter = Painter(page)
    _header(painter, publications, note)
    for index, item in enumerate(tiles):
        tile.draw(painter, grid.place(index), item, grid.height)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    page.save(part, format="PNG", compress_level=6)
    part.replace(path)


async def look(publication: Publication, card: Card, scratch: Path) -> tuple[tile.Picture, str]:
    """The pictures of one sample; a reason instead of what cannot be had.

    Raises:
        IntegrityError: code `publication_damaged`: a verified publication changed meanwhile.
    """
    media: Glimpse | None = None
    controls: list[tuple[str, Frame]] = []
    try:
        if card.media:
            media = await _glimpse(publication, card.media, 3 if card.controls else 4, tile.PICTURE, scratch)
        for path in card.controls[: tile.MAX_CONTROLS]:
            seen = await _glimpse(publication, path, 1, tile.PICTURE, scratch)
            controls.append((Path(path).stem.removeprefix("control_"), seen.frames[0]))
    except Cosmos3Error as error:
        if error.stable_code == UNVERIFIED:
            raise
        return tile.Picture(media, tuple(controls)), error.detail
    return tile.Picture(media, tuple(controls)), ""


async def _glimpse(publication: Publication, artifact: str, count: int, box: tuple[int, int], scratch: Path) -> Glimpse:
    path = await publication.fetch(artifact, scratch)
    try:
        return await asyncio.to_thread(glimpse, path, count=count, box=box)
    finally:
        path.unlink(missing_ok=True)


def _header(painter: Painter, publications: Sequence[Publication], note: str) -> None:
    cards = [card for publication in publications for card in publication.cards]
    failed = sum(card.failed for card in cards)
    counts = f"{len(cards) - failed} of {len(cards)} samples succeeded"
    first = publications[0].provenance
    title = f"{first.model}   batch {first.request_id}"
    if len(publications) > 1:
        title = f"{first.model}   {len(publications)} publications"
    width = painter.width - 2 * MARGIN
    painter.line((MARGIN, 22), title, 24, INK, width, bold=True)
    facts = [
        "engine " + _all(publication.engine for publication in publications),
        "weights " + _all(publication.provenance.weights for publication in publications),
        _all(GUARDRAILS[publication.provenance.guardrails] for publication in publications),
        "status " + _all(publication.provenance.status for publication in publications),
        counts,
        *([note] if note else []),
    ]
    painter.line((MARGIN, 56), "   ·   ".join(facts), 15, FAINT, width)


def _all(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
