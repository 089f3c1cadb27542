"""Tracebacks: an exception becomes its type and the calls that led to it; its text may quote a client and stays out."""

import errno
import logging
from typing import Any

import pytest
import structlog

from cosmos3_serve.service import logs
from cosmos3_serve.service.tracebacks import MAX_FRAMES, Tracebacks, frames


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def line(error: Any, *, messages: bool = False) -> Any:
    return Tracebacks(messages=messages)(None, "error", {"event": "x", "exc_info": error})


def test_type_and_frames_without_the_text() -> None:
    found = line(raised(ValueError("a horse on the beach")))
    assert found["exception"] == "ValueError" and "exc_info" not in found
    assert found["frames"][-1].endswith(" raised") and "test_tracebacks.py:" in found["frames"][-1]
    assert "horse" not in str(found)
    assert line(raised(ValueError("a horse")), messages=True)["message"] == "a horse"


def test_what_the_system_wrote_is_shown() -> None:
    full = line(raised(OSError(errno.ENOSPC, "No space left on device", "/secret/file")))
    assert full["message"] == "No space left on device" and "secret" not in str(full)


def test_causes_are_named_with_their_place() -> None:
    found = line(raised(RuntimeError("outer"), raised(KeyError("inner"))))
    assert found["causes"][0].startswith("KeyError at ") and "test_tracebacks.py" in found["causes"][0]


def test_a_deep_stack_is_bounded() -> None:
    def down(n: int) -> None:
        if n == 0:
            raise ValueError
        down(n - 1)

    with pytest.raises(ValueError) as caught:
        down(200)
    assert len(frames(caught.value)) == MAX_FRAMES


@pytest.mark.parametrize("given", [True, (ValueError, None, None), None])
def test_no_exception_is_no_fault(given: Any) -> None:
    assert line(given) == {"event": "x"}


@pytest.fixture
def restored() -> Any:
    root, ours = logging.getLogger(), logging.getLogger(logs.OURS)
    before, level = list(root.handlers), ours.level
    yield
    root.handlers[:] = before
    ours.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("restored")
def test_both_loggers_write_one_stream(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    logs.configure("info")
    logs.configure("info")  # twice: a replica's process may be configured again
    error = raised(RuntimeError("a horse"))
    ours = logging.getLogger("cosmos3_serve.generator.engines")
    ours.error("unexpected failure while %s", "stepping", exc_info=error)
    structlog.get_logger().error("denoise_raised", exc_info=error)
    logging.getLogger("cosmos3_serve.x").debug("not shown")
    logging.getLogger("some_package").warning("truncated: a horse")
    logging.getLogger("some_package").info("not shown")
    lines = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in lines] == ["unexpected failure while stepping", "denoise_raised", "library_log"]
    assert all(one["frames"] and one["exception"] == "RuntimeError" for one in lines[:2])
    assert lines[2]["logger"] == "some_package" and "horse" not in json.dumps(lines)


@pytest.mark.usefixtures("restored")
def test_debug_shows_what_other_packages_say(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug")
    logging.getLogger("some_package").warning("token %d", 3)
    assert "token 3" in capsys.readouterr().err
