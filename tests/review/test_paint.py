"""Text never leaves its box, whatever it is."""

import pytest
from PIL import Image

from cosmos3_serve.review.paint import NO_CHARACTER, Painter, font, legible

TEXTS = [
    "short",
    "a b " * 400,
    "x" * 2000,
    "",
    "line\nbreak\tand \x00 control",
    "倉庫のロボット " * 60,
    "  blanks   between  ",
]


@pytest.fixture
def painter() -> Painter:
    return Painter(Image.new("RGB", (400, 300)))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("lines", [1, 3])
def test_wrapped_lines_fit_and_are_not_too_many(painter: Painter, text: str, lines: int) -> None:
    face = font(13)
    wrapped = painter.wrap(text.replace("\x00", " "), face, 180, lines)
    assert len(wrapped) <= lines
    assert all(painter.draw.textlength(line, font=face) <= 181 for line in wrapped)


@pytest.mark.parametrize("text", TEXTS)
def test_one_line_fits(painter: Painter, text: str) -> None:
    face = font(16, True)
    flat = " ".join(text.replace("\x00", " ").split())
    assert painter.draw.textlength(painter.fit(flat, face, 120), font=face) <= 120


def test_nothing_is_lost_when_there_is_room(painter: Painter) -> None:
    assert " ".join(painter.wrap("the quick brown fox", font(13), 90, 9)) == "the quick brown fox"


def test_what_is_cut_says_so(painter: Painter) -> None:
    assert painter.wrap("word " * 100, font(13), 100, 2)[-1].endswith("…")
    assert painter.fit("x" * 100, font(13), 60).endswith("…")


def test_what_the_font_lacks_is_spelled_and_never_a_box(painter: Painter) -> None:
    face = font(13)
    assert legible("Größe é Ж 3 m²", face) == "Größe é Ж 3 m²"
    assert legible("a倉b", face) == "a\\u5009b"
    shown = legible("倉庫 \U0001f916", face)
    box = bytes(face.getmask(NO_CHARACTER))
    assert box, "this font draws nothing for what it lacks; then the test proves nothing"
    assert all(character.isspace() or bytes(face.getmask(character)) != box for character in shown)


def test_the_escape_is_what_reaches_the_page() -> None:
    pages = []
    for text in ("x 倉 y", "x \\u5009 y"):
        page = Image.new("RGB", (300, 40), (255, 255, 255))
        Painter(page).line((4, 4), text, 14, (0, 0, 0), 280)
        pages.append(page.tobytes())
    assert pages[0] == pages[1]
    assert any(pages[0][i] < 128 for i in range(0, len(pages[0]), 3)), "something is drawn"
