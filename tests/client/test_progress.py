"""Bars move on a terminal only; without one there are notices, and with `quiet` nothing."""

from __future__ import annotations

import logging

import pytest

from cosmos3_serve.client.progress import Bars, Progress, Silent


def drive(progress: Progress) -> None:
    progress.submitting("req-1", "cosmos3 ray-batch --resume")
    progress.phase("waiting")
    progress.samples(1, 3)
    progress.step("b", 2, 35)
    progress.bytes(5 << 20, 10 << 20)
    progress.notice("careful [bold]")


def test_without_a_terminal_only_sentences_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        drive(bars)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["request req-1; if this is interrupted: cosmos3 ray-batch --resume", "careful [bold]"]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(quiet=True) as bars:
        drive(bars)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_samples_steps_and_bytes_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Bars() as bars:
        drive(bars)
        bars._bars.refresh()
    err = capsys.readouterr().err
    for text in ("1/3", "b: step 2/35", "5/10", "MiB"):
        assert text in err


def test_a_library_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        drive(Silent())
    assert [record.message for record in caplog.records] == ["careful [bold]"]
