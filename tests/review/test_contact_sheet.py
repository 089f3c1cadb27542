"""The contact sheet shows every sample, failed ones included, whatever the number and whatever is broken."""

import hashlib
import resource
from pathlib import Path

import pytest
from PIL import Image
from support.publication import IMAGE, REQUEST, VIDEO, sample, write_publication

from cosmos3_serve.contract.records import SampleRecord
from cosmos3_serve.errors import InputError, NotFound, UsageError
from cosmos3_serve.review import contact_sheet, paint, tile
from cosmos3_serve.review.contact_sheet import Grid, write_contact_sheet
from cosmos3_serve.review.frames import glimpse


@pytest.fixture
def words(monkeypatch):
    """Every text that was drawn."""
    seen: list[str] = []
    for name in ("line", "paragraph", "pill"):
        original = getattr(paint.Painter, name)

        def spy(self, at, text, *args, _original=original, **kwargs):
            seen.append(text)
            return _original(self, at, text, *args, **kwargs)

        monkeypatch.setattr(paint.Painter, name, spy)
    return seen


def draw(root: Path, *results, **changes) -> Image.Image:
    write_publication(root, list(results), **changes)
    (path,) = write_contact_sheet(str(root), root / "sheet.png")
    with Image.open(path) as opened:
        return opened.convert("RGB")


def test_each_sample_says_what_it_is(tmp_path, words) -> None:
    draw(
        tmp_path,
        sample("still", IMAGE, prompt="a robot workcell", seed=23),
        sample("clip", VIDEO),
        sample("moves", {**VIDEO, "model_mode": "wam"}, content={"action": [[0.0] * 10] * 16}),
    )
    text = "\n".join(words)
    for expected in (
        "still",
        "a robot workcell",
        "seed 23  ·  engine diffusers-0.42.1",
        "text2image  ·  96×64",
        "text2video  ·  96×64  ·  9 frames at 8/s",
        "action 16×10",
        "weights: random",
        "guardrails off",
        "3 of 3 samples succeeded",
    ):
        assert expected in text


def test_a_failed_sample_stays_visible_with_its_code(tmp_path, words) -> None:
    record = SampleRecord(name="bad", state="failed", code="guardrail_blocked", message="the prompt was blocked")
    image = draw(
        tmp_path, sample("good", IMAGE), sample("bad", IMAGE, status="error"), status="partial", samples=[record]
    )
    assert {"guardrail_blocked", "the prompt was blocked", "bad"} <= set(words)
    assert "1 of 2 samples succeeded" in "\n".join(words)
    x, y = Grid.of(2).place(1)
    assert image.getpixel((x + tile.WIDTH // 2, y + 20)) == paint.RED[0]


def test_a_sample_without_any_result_is_shown_as_missing(tmp_path, words) -> None:
    draw(tmp_path, sample("here", IMAGE), sample_names=["here", "gone"], batch_size=2, status="partial")
    assert "missing" in words


def test_pictures_are_in_the_sheet(tmp_path) -> None:
    image = draw(tmp_path, sample("still", IMAGE))
    x, y = Grid.of(1).place(0)
    middle = image.getpixel((x + tile.WIDTH // 3, y + tile.PICTURE[1] // 2))
    assert middle[0] > 200 and middle[2] < 120, "the yellow disc of the artifact"


def test_media_that_lie_about_themselves_do_not_stop_the_sheet(tmp_path, words) -> None:
    write_publication(tmp_path, [sample("still", IMAGE), sample("clip", VIDEO)])
    (tmp_path / "artifacts" / REQUEST / "still" / "vision.jpg").write_bytes(b"not a picture")
    (tmp_path / "artifacts" / REQUEST / "clip" / "vision.mp4").unlink()
    write_contact_sheet(str(tmp_path), tmp_path / "sheet.png")
    assert words.count("cannot be shown") == 2
    assert any("cannot be decoded" in text for text in words)


def test_controls_of_a_transfer_sample_are_shown(tmp_path, monkeypatch) -> None:
    captions: list[str] = []
    monkeypatch.setattr(tile, "_caption", lambda painter, at, text: captions.append(text))
    draw(tmp_path, sample("t", VIDEO, files=["vision.mp4", "control_edge.mp4", "control_seg.mp4"]))
    assert captions == ["0.0 s", "0.5 s", "1.0 s", "control: edge", "control: seg"]


@pytest.mark.parametrize(("count", "pages"), [(1, 1), (40, 1), (41, 2), (200, 5)])
def test_one_to_two_hundred_samples(tmp_path, count: int, pages: int) -> None:
    results = [sample(f"s{i:03}", IMAGE, status="error", message="no") for i in range(count)]
    write_publication(tmp_path, results, status="partial")
    written = write_contact_sheet(str(tmp_path), tmp_path / "sheet.png")
    assert [p.name for p in written] == ["sheet.png", *(f"sheet-{i}.png" for i in range(2, pages + 1))]
    for path in written:
        with Image.open(path) as opened:
            assert max(opened.size) < 5000


@pytest.mark.parametrize("count", range(1, contact_sheet.TILES_PER_PAGE + 1))
def test_tiles_never_overlap_nor_leave_the_page(count: int) -> None:
    grid = Grid.of(count)
    places = [grid.place(i) for i in range(count)]
    assert len(set(places)) == count
    assert all(x >= 0 and x + tile.WIDTH <= grid.size[0] and y + tile.HEIGHT <= grid.size[1] for x, y in places)


def test_what_is_no_publication_is_refused_in_words(tmp_path) -> None:
    with pytest.raises(NotFound) as missing:
        write_contact_sheet(str(tmp_path), tmp_path / "sheet.png")
    assert missing.value.stable_code == "no_publication"
    (tmp_path / "provenance.json").write_text('{"status": "completed"}')
    with pytest.raises(InputError) as invalid:
        write_contact_sheet(str(tmp_path), tmp_path / "sheet.png")
    assert invalid.value.stable_code == "invalid_publication"
    with pytest.raises(UsageError):
        write_contact_sheet(str(tmp_path), tmp_path / "sheet.jpg")
    assert not (tmp_path / "sheet.png").exists()


def test_a_publication_is_not_changed_by_looking_at_it(tmp_path) -> None:
    write_publication(tmp_path, [sample("still", IMAGE)])

    def state():
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in tmp_path.rglob("*") if p.is_file()}

    before = state()
    write_contact_sheet(str(tmp_path), tmp_path / "out" / "sheet.png")
    assert {p: h for p, h in state().items() if p in before} == before
    assert set(state()) - set(before) == {tmp_path / "out" / "sheet.png"}


def test_a_large_picture_costs_little_memory(tmp_path) -> None:
    path = tmp_path / "vision.jpg"
    Image.new("RGB", (8000, 6000), (10, 200, 30)).save(path, quality=80)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = glimpse(path, count=1, box=(360, 232))
    assert seen.size == (8000, 6000)
    assert seen.frames[0].image.width <= 360
    # Decoded in full it would be 144 MB; the peak so far already includes making the file.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000
