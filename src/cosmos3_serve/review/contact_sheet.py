"""The contact sheet: every sample of a publication at a glance, failures and random weights plainly visible.

Memory is bounded by one page and one frame: media are fetched one at a time into a scratch directory, and a publication
of many samples becomes several pages.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from cosmos3_serve.errors import Cosmos3Error, UsageError
from cosmos3_serve.review import tile
from cosmos3_serve.review.frames import Frame, Glimpse, glimpse
from cosmos3_serve.review.paint import BACKGROUND, FAINT, INK, Painter
from cosmos3_serve.review.publication import Card, Publication, read_publication

MAX_COLUMNS = 5
TILES_PER_PAGE = 40
MARGIN, GAP, HEADER = 28, 16, 92


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the tiles of one page go."""

    columns: int
    rows: int

    @classmethod
    def of(cls, count: int) -> Grid:
        columns = max(1, min(MAX_COLUMNS, math.ceil(math.sqrt(count * 1.2))))
        return cls(columns, math.ceil(count / columns))

    @property
    def size(self) -> tuple[int, int]:
        width = 2 * MARGIN + self.columns * tile.WIDTH + (self.columns - 1) * GAP
        height = HEADER + MARGIN + self.rows * tile.HEIGHT + (self.rows - 1) * GAP
        return max(width, 2 * MARGIN + 2 * tile.WIDTH), height

    def place(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self.columns)
        return MARGIN + column * (tile.WIDTH + GAP), HEADER + row * (tile.HEIGHT + GAP)


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
        pages = [publication.cards[i : i + TILES_PER_PAGE] for i in range(0, len(publication.cards), TILES_PER_PAGE)]
        for number, cards in enumerate(pages, 1):
            path = output if number == 1 else output.with_name(f"{output.stem}-{number}{output.suffix}")
            page = await _page(publication, cards, f"page {number} of {len(pages)}" if len(pages) > 1 else "", scratch)
            await asyncio.to_thread(_save, page, path)
            written.append(path)
    return written


def _save(page: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    page.save(part, format="PNG", compress_level=6)
    part.replace(path)


async def _page(publication: Publication, cards: tuple[Card, ...], note: str, scratch: Path) -> Image.Image:
    grid = Grid.of(len(cards))
    page = Image.new("RGB", grid.size, BACKGROUND)
    painter = Painter(page)
    _header(painter, publication, note)
    for index, card in enumerate(cards):
        picture, problem = await _look(publication, card, scratch)
        await asyncio.to_thread(tile.draw, painter, grid.place(index), publication, card, picture, problem)
    return page


async def _look(publication: Publication, card: Card, scratch: Path) -> tuple[tile.Picture, str]:
    """The pictures of one sample; a reason instead of what cannot be had."""
    media: Glimpse | None = None
    controls: list[tuple[str, Frame]] = []
    try:
        if card.media:
            media = await _glimpse(publication, card.media, 3 if card.controls else 4, tile.PICTURE, scratch)
        for path in card.controls[: tile.MAX_CONTROLS]:
            seen = await _glimpse(publication, path, 1, tile.PICTURE, scratch)
            controls.append((Path(path).stem.removeprefix("control_"), seen.frames[0]))
    except Cosmos3Error as error:
        return tile.Picture(media, tuple(controls)), error.detail
    return tile.Picture(media, tuple(controls)), ""


async def _glimpse(publication: Publication, artifact: str, count: int, box: tuple[int, int], scratch: Path) -> Glimpse:
    path = await publication.fetch(artifact, scratch)
    try:
        return await asyncio.to_thread(glimpse, path, count=count, box=box)
    finally:
        path.unlink(missing_ok=True)


def _header(painter: Painter, publication: Publication, note: str) -> None:
    record = publication.provenance
    failed = sum(card.failed for card in publication.cards)
    counts = f"{len(publication.cards) - failed} of {len(publication.cards)} samples succeeded"
    title = f"{record.model}   batch {record.request_id}"
    width = painter.width - 2 * MARGIN
    painter.line((MARGIN, 22), title, 24, INK, width, bold=True)
    facts = [
        f"engine {publication.engine}",
        f"weights {record.weights}",
        {True: "guardrails on", False: "guardrails off", None: "guardrails unknown"}[record.guardrails],
        f"status {record.status}",
        counts,
        *([note] if note else []),
    ]
    painter.line((MARGIN, 56), "   ·   ".join(facts), 15, FAINT, width)
