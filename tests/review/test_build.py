"""`review build` over publications: verified first, everything shown, read back with the libraries that others use."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image, ImageDraw
from support.publication import IMAGE, REQUEST, VIDEO, sample, write_publication
from support.s3 import LocalS3, boto

from cosmos3_serve.contract.provenance import Provenance
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import ExitCode, IntegrityError, NotFound, UsageError
from cosmos3_serve.review import paint, recording, tile
from cosmos3_serve.review.build import build_review
from cosmos3_serve.review.contact_sheet import Grid

if find_spec("rerun") is None:
    pytest.skip("the extra `review` is not installed", allow_module_level=True)


def reader(path: Path | None) -> Any:
    from rerun.chunk import RrdReader  # most of a second of CPU, for this worker alone

    return RrdReader(str(path))


def chunks(path: Path) -> list[Any]:
    return list(reader(path).stream())


def read(path: Path, entity: str, column: str) -> Any:
    """One component of one entity, as Rerun's own reader gives it back."""
    (found,) = [
        batch.column(column).to_pylist()
        for chunk in chunks(path)
        if chunk.entity_path == entity and column in (batch := chunk.to_record_batch()).schema.names
    ]
    return found


def blob(path: Path, entity: str, column: str) -> bytes:
    ((data,),) = read(path, entity, column)
    return bytes(data)


def replace_media(root: Path, name: str, write: Any) -> None:
    """Other media of one sample (or of all, for ""), declared as they are."""
    record = Provenance.model_validate_json((root / "provenance.json").read_bytes())
    artifacts = []
    for item in record.artifacts:
        path = root / "artifacts" / item.path
        if name in ("", item.sample):
            write(path)
        data = path.read_bytes()
        artifacts.append(
            Artifact(sample=item.sample, path=item.path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        )
    (root / "provenance.json").write_bytes(record.model_copy(update={"artifacts": artifacts}).to_bytes())


def test_sheet_recording_and_page(tmp_path: Path) -> None:
    source = tmp_path / "out"
    write_publication(source, [sample("still", IMAGE, prompt="倉庫のロボット <b>"), sample("clip", VIDEO)])
    made = build_review([str(source)], tmp_path / "review", notes={"clip": "the gripper floats"})
    assert sorted(p.name for p in (tmp_path / "review").iterdir()) == ["contact-sheet.png", "index.html", "review.rrd"]
    assert made.samples == 2 and made.remarks == {"clip": ["note: the gripper floats"]}
    still = source / "artifacts" / REQUEST / "still" / "vision.jpg"
    clip = source / "artifacts" / REQUEST / "clip" / "vision.mp4"
    assert made.recording is not None
    assert blob(made.recording, f"/{REQUEST}/still/vision", "EncodedImage:blob") == still.read_bytes()
    assert blob(made.recording, f"/{REQUEST}/clip/vision", "AssetVideo:blob") == clip.read_bytes()
    references = read(made.recording, f"/{REQUEST}/clip/vision", "VideoFrameReference:timestamp")
    with av.open(str(clip)) as container:
        frames = [float(frame.time) for frame in container.decode(video=0)]
    assert [value[0] / 1e9 for value in references] == pytest.approx(frames)
    ((facts,),) = read(made.recording, f"/{REQUEST}/provenance", "TextDocument:text")
    assert "weights: random" in facts and "engine: diffusers-0.42.1" in facts
    ((about,),) = read(made.recording, f"/{REQUEST}/clip/about", "TextDocument:text")
    assert "the gripper floats" in about and hashlib.sha256(clip.read_bytes()).hexdigest() in about
    ((prompt,),) = read(made.recording, f"/{REQUEST}/still/about", "TextDocument:text")
    assert "倉庫のロボット" in prompt
    page = made.page.read_text()
    assert "倉庫のロボット &lt;b&gt;" in page and "the gripper floats" in page and "<script" not in page
    with Image.open(made.sheets[0]) as opened:
        sheet = opened.convert("RGB")
    x, y = Grid.of(2, tile.HEIGHT + tile.REMARK).place(0)
    red, _, blue = sheet.getpixel((x + tile.WIDTH // 3, y + tile.PICTURE[1] // 2))  # type: ignore[misc]
    assert red > 200 and blue < 120, "the yellow disc of the artifact"


def test_ids_depend_on_the_publications_alone(tmp_path: Path) -> None:
    write_publication(tmp_path / "a", [sample("still", IMAGE)])
    stores = []
    for place in ("one", "two"):
        made = build_review([str(tmp_path / "a")], tmp_path / place)
        (store,) = reader(made.recording).recordings()
        stores.append((store.application_id, store.recording_id))
        timelines = {name for chunk in chunks(tmp_path / place / "review.rrd") for name in chunk.timeline_names}
        assert not timelines & {"log_time", "log_tick"}
    assert stores[0] == stores[1]
    assert stores[0][0] == recording.APPLICATION
    write_publication(tmp_path / "a", [sample("still", IMAGE, seed=18)])
    made = build_review([str(tmp_path / "a")], tmp_path / "three")
    assert reader(made.recording).recordings()[0].recording_id != stores[0][1]


def test_many_publications_from_disk_and_s3(s3_server: LocalS3, tmp_path: Path) -> None:
    for place, seed in (("a", 1), ("b", 2)):  # the same request twice, as an original and a recovered one are
        write_publication(tmp_path / place, [sample("still", IMAGE, seed=seed), sample("clip", VIDEO)])
    s3_server.create_bucket("review")
    for path in (tmp_path / "b").rglob("*"):
        if path.is_file():
            key = f"b/{path.relative_to(tmp_path / 'b').as_posix()}"
            boto(s3_server.environ).upload_file(str(path), "review", key)
    made = build_review(
        [str(tmp_path / "a"), "s3://review/b/"],
        tmp_path / "review",
        notes={f"{REQUEST}-2/still": "only this one"},
        environ=s3_server.environ,
    )
    assert made.samples == 4
    assert made.remarks == {f"still  ({REQUEST}-2)": ["note: only this one"]}
    entities = {chunk.entity_path for chunk in chunks(made.recording)}  # type: ignore[arg-type]
    assert {f"/{root}/{name}/vision" for root in (REQUEST, f"{REQUEST}-2") for name in ("still", "clip")} <= entities


@pytest.mark.parametrize("broken", ["artifact", "missing", "request.json", "response.json", "native"])
def test_what_is_not_verified_is_refused(tmp_path: Path, broken: str) -> None:
    source = tmp_path / "out"
    write_publication(source, [sample("still", IMAGE), sample("clip", VIDEO)])
    picture = source / "artifacts" / REQUEST / "still" / "vision.jpg"
    if broken == "artifact":
        picture.write_bytes(picture.read_bytes() + b"\0")
    elif broken == "missing":
        picture.unlink()
    elif broken == "native":
        natives = [{"sample": "still", "path": f"{REQUEST}/still/sample_args.json", "role": "args", "bytes": 2}]
        recovery = {"source": "output_directory", "location": "x", "request_from": "journal", "response": "none"}
        recovery |= {"native_records": True, "natives": [natives[0] | {"sha256": "0" * 64}]}
        record = json.loads((source / "provenance.json").read_bytes())
        (source / "provenance.json").write_text(json.dumps(record | {"status": "recovered", "recovery": recovery}))
    else:
        (source / broken).write_text("{}")
    with pytest.raises(IntegrityError) as caught:
        build_review([str(source)], tmp_path / "review")
    assert (caught.value.stable_code, caught.value.exit_code) == ("publication_damaged", ExitCode.SERVICE)
    assert list((tmp_path / "review").iterdir()) == [], "nothing of it is left behind"


def test_a_file_that_changes_after_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "out"
    write_publication(source, [sample("still", IMAGE)])
    from cosmos3_serve.review import build

    original = build._Builder._draw

    async def then(self: Any, *args: Any) -> Any:
        path = source / "artifacts" / REQUEST / "still" / "vision.jpg"
        path.write_bytes(path.read_bytes() + b"\0")
        return await original(self, *args)

    monkeypatch.setattr(build._Builder, "_draw", then)
    with pytest.raises(IntegrityError):
        build_review([str(source)], tmp_path / "review")


def test_defects_are_flagged_and_stay(tmp_path: Path) -> None:
    source = tmp_path / "out"
    write_publication(source, [sample(n, VIDEO) for n in ("black", "frozen", "fine")] + [sample("grey", IMAGE)])
    replace_media(source, "black", lambda path: _clip(path, (0, 0, 0), (0, 0, 0)))
    replace_media(source, "frozen", lambda path: _clip(path, (40, 90, 160), (240, 200, 60)))
    replace_media(source, "grey", lambda path: Image.new("RGB", (96, 64), (128, 128, 128)).save(path))
    made = build_review([str(source)], tmp_path / "review", notes={"black": "as expected of noise"})
    assert made.samples == 4
    black = made.remarks["black"]
    assert black[0] == "note: as expected of noise"
    assert "possible defect: 4 of 4 frames looked at are black" in black
    assert made.remarks["frozen"] == ["possible defect: no motion between 4 frames looked at"]
    assert (
        made.remarks["grey"] == ["possible defect: the picture is one flat colour"] or "flat" in made.remarks["grey"][0]
    )
    assert "fine" not in made.remarks
    entities = {chunk.entity_path for chunk in chunks(tmp_path / "review" / "review.rrd")}
    assert {f"/{REQUEST}/{name}/vision" for name in ("black", "frozen", "fine", "grey")} <= entities
    with Image.open(made.sheets[0]) as opened:
        sheet = opened.convert("RGB")
    x, y = Grid.of(4, tile.HEIGHT + tile.REMARK).place(0)
    remark = sheet.crop((x + tile.PAD, y + tile.HEIGHT - 8, x + tile.WIDTH - tile.PAD, y + tile.HEIGHT + 30))
    colours = {colour for _, colour in remark.getcolors(1 << 16) or []}
    assert paint.RED[1] in colours, "the remark is drawn in red"


def _clip(path: Path, ground: tuple[int, int, int], disc: tuple[int, int, int]) -> None:
    """Nine frames of one and the same picture."""
    image = Image.new("RGB", (96, 64), ground)
    ImageDraw.Draw(image).ellipse((20, 8, 60, 50), fill=disc)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(9):
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode(None))


def test_failed_samples_and_odd_media_do_not_stop_it(tmp_path: Path) -> None:
    source = tmp_path / "out"
    write_publication(
        source, [sample("bad", IMAGE, status="error", message="no"), sample("odd", VIDEO)], status="partial"
    )
    replace_media(source, "odd", lambda path: path.write_bytes(b"no video at all, and declared as it is"))
    made = build_review([str(source)], tmp_path / "review")
    ((about,),) = read(tmp_path / "review" / "review.rrd", f"/{REQUEST}/bad/about", "TextDocument:text")
    assert "no result" in about
    assert any("frame times" in remark for remark in made.remarks["odd"])


def test_an_older_review_is_replaced_whole(tmp_path: Path) -> None:
    output = tmp_path / "review"
    write_publication(tmp_path / "many", [sample(f"s{i}", IMAGE, status="error") for i in range(41)], status="partial")
    build_review([str(tmp_path / "many")], output)
    assert (output / "contact-sheet-2.png").exists()
    (output / "mine.txt").write_text("stays")
    write_publication(tmp_path / "one", [sample("still", IMAGE)])
    build_review([str(tmp_path / "one")], output, recording=False)
    assert sorted(p.name for p in output.iterdir()) == ["contact-sheet.png", "index.html", "mine.txt"]


def test_what_is_refused(tmp_path: Path) -> None:
    write_publication(tmp_path / "a", [sample("still", IMAGE)])
    with pytest.raises(NotFound):
        build_review([str(tmp_path / "nothing")], tmp_path / "review")
    for call, match in (
        (lambda: build_review([], tmp_path / "review"), "nothing"),
        (lambda: build_review([str(tmp_path / "a")] * 2, tmp_path / "review"), "twice"),
        (lambda: build_review([str(tmp_path / "a")], tmp_path / "review", notes={"stil": "x"}), "no such sample"),
    ):
        with pytest.raises(UsageError, match=match):
            call()


def test_without_rerun_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_publication(tmp_path / "a", [sample("still", IMAGE)])
    monkeypatch.setitem(__import__("sys").modules, "rerun", None)
    with pytest.raises(UsageError) as caught:
        build_review([str(tmp_path / "a")], tmp_path / "review")
    assert caught.value.stable_code == "extra_missing" and "--no-rrd" in caught.value.remedy
    build_review([str(tmp_path / "a")], tmp_path / "review", recording=False)


GROWTH = """
import resource, sys
from cosmos3_serve.review.build import build_review
small, large, out = sys.argv[1:]
build_review([small], __import__("pathlib").Path(out) / "warm")  # loads rerun, and its copies of a file are made once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
build_review([large], __import__("pathlib").Path(out) / "review")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded_by_one_file(tmp_path: Path) -> None:
    """Sixteen files of 8 MiB cost hardly more than two; a JPEG may carry bytes after its end."""
    write_publication(tmp_path / "small", [sample(f"s{i:02}", IMAGE) for i in range(2)])
    write_publication(tmp_path / "large", [sample(f"s{i:02}", IMAGE) for i in range(16)])
    for place in ("small", "large"):
        replace_media(tmp_path / place, "", lambda path: path.write_bytes(path.read_bytes() + os.urandom(8 << 20)))
    arguments = [str(tmp_path / "small"), str(tmp_path / "large"), str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", GROWTH, *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "review" / "review.rrd").stat().st_size > 128 << 20
    assert int(done.stdout) < 32 << 10, f"{int(done.stdout) >> 10} MiB"
