import json
import signal
import subprocess
import sys
from pathlib import Path

import av
import pytest

from cosmos3_serve.bench.videos import CODECS, LISTING, Recipe, VideoSet, make_video, make_videos, refuse_duplicates
from cosmos3_serve.errors import Cosmos3Error

SMALL = Recipe(seconds=1, fps=4, width=64, height=48)


def test_clips_differ_and_are_listed_by_their_content(tmp_path: Path) -> None:
    told: list[int] = []
    listing = make_videos(tmp_path, 5, SMALL, workers=2, progress=told.append)
    assert [video.name for video in listing.videos] == [f"video-{n:05d}.mp4" for n in range(5)]
    assert len({video.sha256 for video in listing.videos}) == 5
    assert told[0] == 0 and told[-1] == 5
    assert VideoSet.read(tmp_path) == listing
    assert not list(tmp_path.glob(".*"))


def test_what_is_whole_is_kept_and_what_is_not_is_made_again(tmp_path: Path) -> None:
    listing = make_videos(tmp_path, 3, SMALL, workers=1)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.mp4")}
    (tmp_path / "video-00001.mp4").write_bytes(b"x" * listing.videos[1].bytes)
    (tmp_path / "video-00002.mp4").unlink()
    again = make_videos(tmp_path, 4, SMALL, workers=1)
    assert again.videos[:3] == listing.videos, "a clip's bytes depend on its number and recipe alone"
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.mp4")}
    assert after["video-00000.mp4"] == times["video-00000.mp4"]
    assert after["video-00001.mp4"] != times["video-00001.mp4"]


KILLED = """
import os, signal, sys
from pathlib import Path
from cosmos3_serve.bench.videos import Recipe, make_videos

def told(made):
    print(made, flush=True)
    if made == 3:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    make_videos(Path(sys.argv[1]), 12, Recipe(seconds=1, fps=4, width=64, height=48), workers=2, progress=told)
"""


def test_a_run_that_was_killed_is_taken_up_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    folder = tmp_path / "clips"
    # Its end is the end of the processes that encode too: they hold the pipes.
    ended = subprocess.run([sys.executable, str(tmp_path / "killed.py"), str(folder)], capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL and ended.stdout.split() == [b"0", b"1", b"2", b"3"]
    listed = VideoSet.read(folder).videos
    assert len(listed) == 3, "each clip was listed before it was told"
    times = {video.name: (folder / video.name).stat().st_mtime_ns for video in listed}
    (folder / ".video-00011.mp4.999999999.part").write_bytes(b"half")
    told: list[int] = []
    again = make_videos(folder, 5, SMALL, workers=1, progress=told.append)
    # Of two processes one may have been at the first of them still.
    assert told[0] == 3 and [video for video in again.videos if video.name in times] == listed
    assert times == {video.name: (folder / video.name).stat().st_mtime_ns for video in listed}, "they were kept"
    assert not (folder / ".video-00011.mp4.999999999.part").exists()


def test_a_smaller_call_forgets_no_clip(tmp_path: Path) -> None:
    make_videos(tmp_path, 3, SMALL, workers=1)
    assert len(make_videos(tmp_path, 1, SMALL, workers=1).videos) == 3


def test_another_recipe_needs_another_directory(tmp_path: Path) -> None:
    make_videos(tmp_path, 1, SMALL, workers=1)
    with pytest.raises(Cosmos3Error) as refused:
        make_videos(tmp_path, 1, SMALL.model_copy(update={"fps": 2}), workers=1)
    assert refused.value.stable_code == "videos_other_recipe"


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_decodes_to_every_frame(tmp_path: Path, codec: str) -> None:
    video = make_video(tmp_path, 7, SMALL.model_copy(update={"codec": codec}))
    with av.open(str(tmp_path / video.name)) as source:
        stream = source.streams.video[0]
        assert (stream.codec_context.width, stream.codec_context.height) == (64, 48)
        assert sum(1 for _ in source.decode(stream)) == 4


def test_equal_contents_are_refused(tmp_path: Path) -> None:
    video = make_video(tmp_path, 0, SMALL)
    with pytest.raises(Cosmos3Error) as refused:
        refuse_duplicates([video, video.model_copy(update={"name": "video-00009.mp4"})])
    assert refused.value.stable_code == "videos_duplicate"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"recipe": 1}', json.dumps({"recipe": {}, "made_by": "x", "videos": [{}]})]
)
def test_a_broken_listing_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / LISTING).write_text(text)
    with pytest.raises(Cosmos3Error) as refused:
        VideoSet.read(tmp_path)
    assert refused.value.stable_code == "videos_unreadable"
