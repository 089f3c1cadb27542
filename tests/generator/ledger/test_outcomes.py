"""Outcomes: no path and no foreign text leaves (the whole response is tested through the coordinator)."""

from __future__ import annotations

import pytest

from cosmos3_serve.contract.records import SampleOutputs
from cosmos3_serve.generator.ledger.outcomes import public_outputs, shown


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain words", "plain words"),
        ("cannot open /outputs/r1/a/x.jpg: no such file", "cannot open <path>: no such file"),
        ("'/srv/.cache/huggingface/hub'", "'<path>'"),
        ("[Errno 28] No space: '/srv/my data/x y.mp4' (full)", "[Errno 28] No space: '<path>' (full)"),
        ("cannot write /srv/my data/of me/x.mp4: full", "cannot write <path>: full"),
        ("see https://huggingface.co/nvidia/x", "see https://huggingface.co/nvidia/x"),
        ("a ratio of 16/9 or and/or", "a ratio of 16/9 or and/or"),
        ("\n\n first line \n Traceback (most recent call last)", "first line"),
        ("", "no reason given"),
    ],
)
def test_messages_are_one_short_line_without_paths(text: str, visible: str) -> None:
    assert shown(text) == visible


def test_long_messages_are_cut() -> None:
    assert len(shown("x" * 5000)) == 300


def test_paths_become_what_the_client_gave_and_prompts_stay() -> None:
    args = {
        "name": "a",
        "output_dir": "/out/r/a",
        "vision_path": "/out/.cosmos3/staging/r/0.png",
        "edge": {"control_path": "/out/.cosmos3/staging/r/1.mp4", "weight": 1.0},
        "prompt": "/out/r/a is what the prompt says",
        "extra": {"cache_dir": "/out/x"},
    }
    result = SampleOutputs(args=args, stack_trace="secret", message="noise")
    given = {"/out/.cosmos3/staging/r/0.png": "s3://b/v.png", "/out/.cosmos3/staging/r/1.mp4": "s3://b/e.mp4"}
    public = public_outputs(result, directory="r/a", output_root="/out", given=given)
    assert public["args"] == {
        "name": "a",
        "output_dir": "r/a",
        "vision_path": "s3://b/v.png",
        "edge": {"control_path": "s3://b/e.mp4", "weight": 1.0},
        "prompt": "/out/r/a is what the prompt says",
        "extra": {"cache_dir": "x"},
    }
    assert public["stack_trace"] is None and public["message"] is None
