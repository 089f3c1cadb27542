"""Verdicts are remembered over restarts, within a bound, and only under the rules that made them."""

from pathlib import Path

from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.verdicts import Verdict, Verdicts

A, B = "a" * 64, "b" * 64
INFO = MediaInfo("video", "video/mp4", "mp4", "av1", "yuv420p", 160, 96, 24, 12.0, 2.0, 5, replica_frames=24)
COPY = MediaInfo("video", "video/mp4", "mp4", "h264", "yuv420p", 160, 96, 24, 12.0, 2.0, 9, normalised=("av1",))


def opened(root: Path, rules: str = "r1", **more: object) -> Verdicts:
    verdicts = Verdicts(root, rules=rules, **more)  # type: ignore[arg-type]
    verdicts.open()
    return verdicts


def test_good_and_bad_survive_a_restart(tmp_path: Path) -> None:
    verdicts = opened(tmp_path)
    good, bad = Verdict(INFO, None, (B, COPY)), Verdict(None, Refused(422, "media_corrupt", "broken", "fix"))
    verdicts.write(A, "video", good)
    verdicts.write(B, "image", bad)
    again = opened(tmp_path)
    assert again.recall(A, "video") is None, "memory is empty at first, and recall never reads"
    assert again.read(A, "video") == good
    assert again.recall(A, "video") == good
    found = again.read(B, "image")
    assert found is not None
    assert found.refused is not None
    assert found.refused.as_dict() == bad.refused.as_dict()  # type: ignore[union-attr]
    assert again.read(A, "image") is None, "the same bytes as another kind are another question"


def test_other_rules_ask_again(tmp_path: Path) -> None:
    opened(tmp_path).write(A, "video", Verdict(INFO))
    assert opened(tmp_path, "r2").read(A, "video") is None
    assert MediaLimits().fingerprint() != MediaLimits(max_frames=5).fingerprint()


def test_memory_and_disk_are_bounded(tmp_path: Path) -> None:
    verdicts = opened(tmp_path, max_verdicts=5)
    for index in range(12):
        verdicts.write(f"{index:064x}", "video", Verdict(INFO))
    assert len(verdicts) == 5
    assert len(list((tmp_path / "verdicts").iterdir())) == 5
    assert opened(tmp_path, max_verdicts=2).read(f"{11:064x}", "video") is not None
    assert len(list((tmp_path / "verdicts").iterdir())) == 2


def test_what_may_pass_is_forgotten_and_never_written(tmp_path: Path) -> None:
    now = 0.0
    verdicts = opened(tmp_path, clock=lambda: now)
    verdicts.remember(A, "video", Verdict(None, Refused(422, "media_too_slow", "slow")), 600)
    assert verdicts.recall(A, "video") is not None
    assert list((tmp_path / "verdicts").iterdir()) == []
    now = 600.0
    assert verdicts.recall(A, "video") is None


def test_a_torn_file_is_as_none(tmp_path: Path) -> None:
    verdicts = opened(tmp_path)
    verdicts.write(A, "video", Verdict(INFO))
    (tmp_path / "verdicts" / f"{A}.video.json").write_text('{"rules": "r1", "info"')
    assert opened(tmp_path).read(A, "video") is None
