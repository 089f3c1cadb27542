"""`review build`: contact sheets, a Rerun recording and a page from one or many publications.

Every publication is verified before anything is drawn, and each file again when it is fetched for drawing; what was
made takes its place only when all of it is done. Memory is bounded by one page of thumbnails and one encoded file.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmos3_serve.errors import UsageError
from cosmos3_serve.review.contact_sheet import draw_page, look, page_path, pages_of
from cosmos3_serve.review.defects import possible_defects
from cosmos3_serve.review.notes import check_used
from cosmos3_serve.review.page import write_page
from cosmos3_serve.review.publication import Card, Publication, read_publication
from cosmos3_serve.review.recording import Recording, roots
from cosmos3_serve.review.tile import Picture, Tile

SHEET, RECORDING, PAGE = "contact-sheet.png", "review.rrd", "index.html"
OLDER = re.compile(r"contact-sheet(-\d+)?\.png|review\.rrd|index\.html")


@dataclass(frozen=True, slots=True)
class Review:
    """What was made, and what a reviewer should look at: sample to its notes and possible defects."""

    sheets: tuple[Path, ...]
    recording: Path | None
    page: Path
    samples: int
    remarks: dict[str, list[str]] = field(default_factory=dict)


def build_review(
    locations: Sequence[str],
    output: Path,
    *,
    notes: Mapping[str, str] | None = None,
    recording: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Review:
    """Review the publications at `locations` (S3 or directories) into the folder `output`, replacing an older review.

    Raises:
        IntegrityError: code `publication_damaged`: a publication does not hold what its provenance declares.
        NotFound, InputError: code `no_publication`, `invalid_publication`.
        UsageError: no location, notes about unknown samples, rerun-sdk missing.
    """
    return asyncio.run(_Builder(list(locations), output, dict(notes or {}), environ).run(recording))


@dataclass
class _Builder:
    locations: list[str]
    output: Path
    notes: dict[str, str]
    environ: Mapping[str, str] | None

    async def run(self, recording: bool) -> Review:
        if not self.locations:
            raise UsageError("there is nothing to review", remedy="name at least one publication")
        if len(set(self.locations)) != len(self.locations):
            raise UsageError("a publication is named twice", remedy="name each once")
        self.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".review-", dir=self.output) as folder:
            stage, scratch = Path(folder) / "made", Path(folder) / "scratch"
            stage.mkdir()
            scratch.mkdir()
            publications = [await read_publication(place, scratch, self.environ) for place in self.locations]
            publications = [await publication.verify() for publication in publications]
            self.names = roots(publications)
            check_used(self.notes, self._known(publications))
            tiles, sheets = await self._draw(publications, stage, scratch, recording)
            await asyncio.to_thread(write_page, stage / PAGE, tiles, [sheet.name for sheet in sheets])
            await asyncio.to_thread(self._place, stage)
        return Review(
            sheets=tuple(self.output / sheet.name for sheet in sheets),
            recording=self.output / RECORDING if recording else None,
            page=self.output / PAGE,
            samples=len(tiles),
            remarks={tile.title or tile.card.name: list(tile.remarks) for tile in tiles if tile.remarks},
        )

    async def _draw(
        self, publications: list[Publication], stage: Path, scratch: Path, recording: bool
    ) -> tuple[list[Tile], list[Path]]:
        entries = [(i, card) for i, publication in enumerate(publications) for card in publication.cards]
        pages = pages_of(entries)
        tiles: list[Tile] = []
        sheets = []
        with ExitStack() as stack:
            log = stack.enter_context(Recording(stage / RECORDING, publications)) if recording else None
            for index in range(len(publications)) if log else ():
                await asyncio.to_thread(log.add, index)  # type: ignore[union-attr]
            for number, page in enumerate(pages, 1):
                drawn = [await self._tile(publications, index, card, scratch, log) for index, card in page]
                sheets.append(page_path(stage / SHEET, number))
                await draw_page(publications, drawn, sheets[-1], number, len(pages))
                tiles += [replace(tile, picture=Picture(None)) for tile in drawn]  # the page needs no pixels any more
        return tiles, sheets

    async def _tile(
        self, publications: list[Publication], index: int, card: Card, scratch: Path, log: Recording | None
    ) -> Tile:
        publication = publications[index]
        picture, problem = await look(publication, card, scratch)
        frames = [frame.image for frame in picture.media.frames] if picture.media else []
        moving = bool(picture.media and picture.media.frames[0].at_s is not None)
        remarks = [f"note: {text}"] if (text := self._note(index, card)) else []
        remarks += await asyncio.to_thread(possible_defects, frames, moving=moving)
        for artifact in filter(None, (card.media, *card.controls)) if log else ():
            assert log is not None
            path = await publication.fetch(artifact, scratch)
            if said := await asyncio.to_thread(log.media, index, card, artifact, path):
                remarks.append(said)
            path.unlink(missing_ok=True)
        if log:
            await asyncio.to_thread(log.sample, index, card, remarks)
        title = f"{card.name}  ({self.names[index]})" if len(publications) > 1 else ""
        return Tile(publication, card, picture, problem, tuple(remarks), title)

    def _note(self, index: int, card: Card) -> str:
        return self.notes.get(f"{self.names[index]}/{card.name}", self.notes.get(card.name, ""))

    def _known(self, publications: list[Publication]) -> set[str]:
        pairs = zip(self.names, publications, strict=True)
        return {key for name, p in pairs for card in p.cards for key in (card.name, f"{name}/{card.name}")}

    def _place(self, stage: Path) -> None:
        """The new review instead of an older one; pages that the new one lacks go."""
        made = {path.name for path in stage.iterdir()}
        for path in stage.iterdir():
            path.replace(self.output / path.name)
        for old in self.output.iterdir():
            if OLDER.fullmatch(old.name) and old.name not in made:
                old.unlink()
