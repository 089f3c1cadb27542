"""One tile of the contact sheet: pictures on top, what they are below."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from cosmos3_serve.review.frames import Frame, Glimpse
from cosmos3_serve.review.paint import AMBER, DARK, FAINT, GREEN, GREY, INK, PAPER, RED, SOFT, Painter, font
from cosmos3_serve.review.publication import Card, Publication

WIDTH, HEIGHT = 360, 408
REMARK = 44  # more height where a page has remarks
PICTURE = (WIDTH, 232)
MAX_CONTROLS = 5  # one per hint
PAD, GUTTER = 14, 3


@dataclass(frozen=True, slots=True)
class Picture:
    """What was seen of a sample: its media, and the first frame of each control by hint."""

    media: Glimpse | None
    controls: tuple[tuple[str, Frame], ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One sample on a page.

    Attributes:
        problem: why pictures are missing, empty where none are.
        remarks: a reviewer's note and possible defects; a sample with defects stays in.
        title: instead of the sample's name, where several publications share a page.
    """

    publication: Publication
    card: Card
    picture: Picture
    problem: str = ""
    remarks: tuple[str, ...] = ()
    title: str = ""


def draw(painter: Painter, at: tuple[int, int], tile: Tile, height: int = HEIGHT) -> None:
    """Paint one tile at `at` (its top left corner), `height` pixels high."""
    card, picture, problem = tile.card, tile.picture, tile.problem
    x, y = at
    painter.card((x, y, x + WIDTH, y + height))
    area = (x + 1, y + 1, x + WIDTH - 1, y + PICTURE[1])
    if card.failed:
        _notice(painter, area, card.code, card.message)
    elif picture.media is None or problem:
        _notice(painter, area, "cannot be shown" if card.media else "no picture", problem)
    else:
        _pictures(painter, area, picture)
    _words(painter, (x + PAD, y + PICTURE[1] + 12), tile)
    if tile.remarks:
        at = (x + PAD, y + HEIGHT - 8)
        painter.paragraph(at, "  ·  ".join(tile.remarks), 12, RED[1], WIDTH - 2 * PAD, 2)


def _notice(painter: Painter, area: tuple[int, int, int, int], head: str, text: str) -> None:
    painter.draw.rounded_rectangle(area, radius=9, fill=RED[0], corners=(True, True, False, False))
    middle = (area[1] + area[3]) // 2
    width = area[2] - area[0] - 2 * PAD
    painter.line((area[0] + PAD, middle - 44), head, 22, RED[1], width, bold=True)
    painter.paragraph((area[0] + PAD, middle - 8), text, 14, RED[1], width, 4)


def _pictures(painter: Painter, area: tuple[int, int, int, int], picture: Picture) -> None:
    assert picture.media is not None
    painter.draw.rounded_rectangle(area, radius=9, fill=DARK, corners=(True, True, False, False))
    shown = [(frame, "" if frame.at_s is None else f"{frame.at_s:.1f} s") for frame in picture.media.frames]
    shown += [(frame, f"control: {hint}") for hint, frame in picture.controls]
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 4 else 3
    rows = -(-len(shown) // columns)
    width, height = (area[2] - area[0]) // columns, (area[3] - area[1]) // rows
    for index, (frame, caption) in enumerate(shown):
        left, top = area[0] + index % columns * width, area[1] + index // columns * height
        painter.paste(frame.image, (left + GUTTER, top + GUTTER, left + width - GUTTER, top + height - GUTTER))
        if caption:
            _caption(painter, (left + GUTTER + 4, top + height - GUTTER - 20), caption)


def _caption(painter: Painter, at: tuple[int, int], text: str) -> None:
    """Small white words on a dark ground, readable on any picture."""
    face = font(11)
    width = round(painter.draw.textlength(text, font=face)) + 8
    patch = Image.new("RGB", (width, 16), DARK)
    box = (at[0], at[1], at[0] + width, at[1] + 16)
    painter.page.paste(Image.blend(painter.page.crop(box), patch, 0.72), (at[0], at[1]))
    painter.draw.text((at[0] + 4, at[1] + 8), text, font=face, fill=PAPER, anchor="lm")


def _words(painter: Painter, at: tuple[int, int], tile: Tile) -> None:
    publication, card, picture = tile.publication, tile.card, tile.picture
    x, y = at
    width = WIDTH - 2 * PAD
    painter.line((x, y), tile.title or card.name, 16, INK, width, bold=True)
    painter.line((x, y + 24), "  ·  ".join(_facts(card, picture)), 12, FAINT, width)
    painter.paragraph((x, y + 46), card.prompt or "(no prompt)", 13, SOFT, width, 3)
    painter.line((x, y + 106), f"seed {card.seed}  ·  engine {publication.engine}", 12, FAINT, width)
    used = 0
    for text, colours in _labels(publication, card):
        used += painter.pill((x + used, y + 128), text, colours, width - used) + 6


def _facts(card: Card, picture: Picture) -> list[str]:
    facts = [card.mode or "mode unknown"]
    if picture.media:
        facts.append("{}×{}".format(*picture.media.size))
    if card.frames and card.frames > 1:
        facts.append(f"{card.frames} frames" + (f" at {card.fps:g}/s" if card.fps else ""))
    if card.action:
        facts.append("action {}×{}".format(*card.action))
    return facts


def _labels(
    publication: Publication, card: Card
) -> list[tuple[str, tuple[tuple[int, int, int], tuple[int, int, int]]]]:
    weights = publication.provenance.weights
    guardrails = card.guardrails
    colour = GREEN if "applied" in guardrails else RED if "blocked" in guardrails else GREY
    return [(f"weights: {weights}", AMBER if weights != "pretrained" else GREEN), (guardrails, colour)]
