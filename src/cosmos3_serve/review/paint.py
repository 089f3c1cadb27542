"""Drawing with words: fonts that are always there, wrapping by measured width, pills and cards."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

BACKGROUND: Final[Colour] = (241, 243, 246)
PAPER: Final[Colour] = (255, 255, 255)
EDGE: Final[Colour] = (214, 219, 226)
INK: Final[Colour] = (24, 29, 38)
SOFT: Final[Colour] = (62, 70, 84)
FAINT: Final[Colour] = (108, 117, 132)
DARK: Final[Colour] = (30, 34, 41)
AMBER: Final[tuple[Colour, Colour]] = ((255, 237, 204), (125, 74, 0))
GREEN: Final[tuple[Colour, Colour]] = ((219, 242, 226), (22, 94, 48))
GREY: Final[tuple[Colour, Colour]] = ((232, 235, 240), (72, 80, 94))
RED: Final[tuple[Colour, Colour]] = ((253, 226, 224), (152, 27, 27))

ELLIPSIS = "…"
MAX_TEXT = 4000
NO_CHARACTER = "\U0010ffff"  # no font has it, so this is how a font draws what it lacks


@lru_cache(maxsize=64)
def font(size: int, bold: bool = False) -> Font:
    """DejaVu Sans where the system has it (it covers far more scripts), else the font inside Pillow."""
    try:
        return ImageFont.truetype("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)


@lru_cache(maxsize=4096)
def _has_glyph(face: Font, character: str) -> bool:
    """Whether the font draws this character, and not the box that stands for every one it lacks."""
    if not isinstance(face, ImageFont.FreeTypeFont):
        return ord(character) < 256
    mask, box = face.getmask(character), face.getmask(NO_CHARACTER)
    return character.isspace() or (mask.size, bytes(mask)) != (box.size, bytes(box))


def legible(text: str, face: Font) -> str:
    """One line of text in which nothing turns into an unreadable box: what the font lacks is spelled as an escape.

    Line ends and control characters become blanks; the text is cut at 4,000 characters.
    """
    flat = (c if c.isprintable() else " " for c in text[:MAX_TEXT])
    return "".join(c if _has_glyph(face, c) else c.encode("unicode_escape").decode("ascii") for c in flat)


class Painter:
    """Draws on one page; positions are pixels from its top left corner."""

    def __init__(self, page: Image.Image) -> None:
        self.page = page
        self.draw = ImageDraw.Draw(page)

    @property
    def width(self) -> int:
        return self.page.width

    def card(self, box: tuple[int, int, int, int], fill: Colour = PAPER, edge: Colour = EDGE) -> None:
        self.draw.rounded_rectangle(box, radius=10, fill=fill, outline=edge, width=1)

    def line(
        self, at: tuple[int, int], text: str, size: int, colour: Colour, width: int, *, bold: bool = False
    ) -> None:
        """One line, cut with an ellipsis where it would pass `width`."""
        face = font(size, bold)
        self.draw.text(at, self.fit(legible(text, face), face, width), font=face, fill=colour)

    def paragraph(self, at: tuple[int, int], text: str, size: int, colour: Colour, width: int, lines: int) -> int:
        """Wrapped text of at most `lines` lines; returns the height used."""
        face = font(size)
        step = round(size * 1.4)
        wrapped = self.wrap(legible(text, face), face, width, lines)
        for number, line in enumerate(wrapped):
            self.draw.text((at[0], at[1] + number * step), line, font=face, fill=colour)
        return len(wrapped) * step

    def pill(self, at: tuple[int, int], text: str, colours: tuple[Colour, Colour], width: int) -> int:
        """A small label; returns the width used."""
        face = font(12)
        text = self.fit(legible(text, face), face, width - 16)
        used = round(self.draw.textlength(text, font=face)) + 16
        self.draw.rounded_rectangle((at[0], at[1], at[0] + used, at[1] + 20), radius=10, fill=colours[0])
        self.draw.text((at[0] + 8, at[1] + 10), text, font=face, fill=colours[1], anchor="lm")
        return used

    def paste(self, image: Image.Image, box: tuple[int, int, int, int]) -> None:
        """Centre an image in a box, shrunk or enlarged to fit; small pictures stay crisp."""
        width, height = box[2] - box[0], box[3] - box[1]
        scale = min(width / image.width, height / image.height)
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        if size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        self.page.paste(image, (box[0] + (width - size[0]) // 2, box[1] + (height - size[1]) // 2))

    def fit(self, text: str, face: Font, width: float) -> str:
        if self.draw.textlength(text, font=face) <= width:
            return text
        low, high = 0, len(text)  # longest prefix that fits with its ellipsis
        while low < high:
            middle = (low + high + 1) // 2
            if self.draw.textlength(text[:middle].rstrip() + ELLIPSIS, font=face) <= width:
                low = middle
            else:
                high = middle - 1
        return text[:low].rstrip() + ELLIPSIS

    def wrap(self, text: str, face: Font, width: int, lines: int) -> list[str]:
        """Break at blanks, inside a word only where the word alone is too wide."""
        words, current = text.split(), ""
        found: list[str] = []
        while words and len(found) < lines:
            word = words[0]
            trial = f"{current} {word}".strip()
            if self.draw.textlength(trial, font=face) <= width:
                current = trial
                words.pop(0)
            elif current:
                found.append(current)
                current = ""
            else:
                head = self.fit(word, face, width).removesuffix(ELLIPSIS) or word[0]
                found.append(head)
                words[0] = word[len(head) :]
        if current and len(found) < lines:
            found.append(current)
        elif words or current:
            found[-1] = self.fit(f"{found[-1]}{ELLIPSIS}", face, width)
        return found
