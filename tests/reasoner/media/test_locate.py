"""Cutting big data URLs out of a body gives what plain JSON parsing would have given."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.errors import Cosmos3Error, InvalidRequest, LimitExceeded, UnsupportedMediaType
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media import locate as module
from cosmos3_serve.reasoner.media.content import find_parts
from cosmos3_serve.reasoner.media.dataurl import decode
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.locate import locate
from cosmos3_serve.reasoner.media.parts import DataSource, FileSource, UrlSource

LIMITS = MediaLimits()
BIG = bytes(range(256)) * 40
URL = "data:video/mp4;base64," + base64.b64encode(BIG).decode()
SCOPED = {"videos_kwargs": {"size": {"longest_edge": 9_000}}}


def body(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


def video(url: Any = URL) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def refusal(value: Any, limits: MediaLimits = LIMITS) -> Cosmos3Error:
    with pytest.raises(Cosmos3Error) as caught:
        locate(value if isinstance(value, bytes) else raw(value), limits)
    return caught.value


def seen(data: bytes, limits: MediaLimits = LIMITS) -> Any:
    """What came out, comparable; or that it was refused (a broken data URL may be found out later than otherwise)."""
    try:
        found = locate(data, limits)
        parts = [
            (p.kind, p.where, decode(p.source, 10**9) if isinstance(p.source, DataSource) else p.source, p.options)
            for p in found.parts
        ]
    except (Cosmos3Error, Refused):
        return "refused"
    return found.body, parts


def plainly(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_cuts", lambda data: [])
        return seen(data)


def test_a_video_is_cut_out_and_its_text_is_not_copied() -> None:
    data = raw(body({"type": "text", "text": "what?"}, video(), session="s"))
    found = locate(data, LIMITS)
    (part,) = found.parts
    assert part.kind == "video"
    assert part.param == "messages[0].content[1]"
    assert isinstance(part.source, DataSource)
    assert part.source.text.obj is data, "a view of the body, not a copy"
    assert decode(part.source, 10**6) == BIG
    assert found.body["messages"][0]["content"][1] == {"type": "video_url", "video_url": None}
    assert found.body["session"] == "s"


def test_fields_after_five_megabytes_are_read() -> None:
    long = "data:video/mp4;base64," + base64.b64encode(bytes(5_000_000)).decode()
    found = locate(raw(body(video(long), session_id="at the end")), LIMITS)
    assert found.body["session_id"] == "at the end"
    assert isinstance(found.parts[0].source, DataSource)
    assert len(decode(found.parts[0].source, 10**7)) == 5_000_000


def test_escapes_in_a_data_url_mean_what_they_mean_in_json() -> None:
    slashes = raw(body(video())).replace(b"/", b"\\/")
    letters = raw(body(video())).replace(b"base64,A", b"base64,\\u0041")
    start = raw(body(video())).replace(b'"data:', b'"d\\u0061ta:')
    for data in (slashes, letters, start):
        (part,) = locate(data, LIMITS).parts
        assert isinstance(part.source, DataSource)
        assert decode(part.source, 10**6) == BIG


# Short ones, and a threshold to match: the property is about where a cut may stand, not about its length.
SHORT = "data:video/mp4;base64," + base64.b64encode(bytes(range(40, 80))).decode()
TEXTS = st.sampled_from(
    [
        "x",
        SHORT,
        '"' + SHORT,
        'said "' + SHORT + '" and',
        '\\"' + SHORT,
        "\\",
        SHORT + "\\",
        SHORT + '\\"',
        "data:",
        "DATA:" + SHORT[5:],
        "é" + SHORT,
        "data:text/plain," + "a" * 50,
        "data:text/plain,\t" + "a" * 50,
        "data:video/mp4;base64,\n" + "A" * 80,
        "data:video/jpeg;base64," + "A" * 80,
    ]
)
PARTS = st.one_of(
    TEXTS,
    st.builds(lambda t: {"type": "text", "text": t}, TEXTS),
    st.builds(video, TEXTS),
    st.builds(lambda t: {"type": "image_url", "image_url": t}, TEXTS),
    st.builds(lambda t: {"video_url": t, t: 1}, TEXTS),
)
BODIES = st.builds(
    lambda parts, extra, key: {**body(*parts), key: extra},
    st.lists(PARTS, max_size=3),
    TEXTS,
    st.sampled_from(["session", SHORT, "user"]),
)


@given(BODIES, st.booleans(), st.sampled_from([None, b"/", b'"', b"\\", b"}", b"\x01", b"\xff", b"data:"]), st.data())
def test_equals_plain_parsing(value: Any, ascii_only: bool, poke: bytes | None, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    if poke is not None:
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + poke + text[at:]
    if data.draw(st.booleans()):
        text = text.replace(b"/", b"\\/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BIG", 32)
        assert seen(text) == plainly(text, patch)


def test_plain_parsing_of_the_property_is_json() -> None:
    """The oracle itself: without cuts, the body is json.loads of the text with the parts taken out."""
    value = body({"type": "text", "text": "t"}, video("https://h/a.mp4"))
    expected = json.loads(raw(value))
    find_parts(expected, {}, LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        assert plainly(raw(value), patch)[0] == expected


def test_broken_json_is_refused_wherever_the_break_is() -> None:
    data = raw(body(video()))
    cut = data.find(b"base64,") + 50
    for broken in (
        data[:-1],
        data[:cut],
        data[:cut] + b"\n" + data[cut:],
        data[:cut] + b'"' + data[cut:],
        data[:cut] + b"\xff" + data[cut:],
    ):
        assert seen(broken) == "refused"


def test_a_key_that_stands_twice_is_refused() -> None:
    data = raw(body(video())).replace(b'{"url":', b'{"url": "https://other/x.mp4", "url":')
    error = refusal(data)
    assert isinstance(error, InvalidRequest)
    assert error.stable_code == "invalid_json"
    assert "twice" in error.detail


def test_nesting_values_and_sizes_are_bounded() -> None:
    assert refusal(b"[" * 100_000 + b"]" * 100_000).status == 400
    assert refusal(body(deep=eval("[" * 80 + "]" * 80))).stable_code == "invalid_json"
    assert isinstance(refusal(raw(body(many=[1] * 600_000))), LimitExceeded)
    error = refusal(body(video()), MediaLimits(max_body_bytes=1000))
    assert (error.status, error.stable_code) == (413, "body_too_large")
    assert "1000" in error.detail
    assert refusal(body(video(), more="x" * 2000), MediaLimits(max_light_bytes=1000)).status == 413
    assert locate(raw(body(video())), MediaLimits(max_light_bytes=1000)).parts


def test_sources_and_short_forms() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "HTTPS://h/x.png", "detail": "low"}},
        {"image_url": "s3://b/k.png"},
        {"type": "input_image", "image_url": "file-id:file-1", "uuid": "mine"},
    ]
    found = locate(raw(body(*parts, mm_processor_kwargs={"max_pixels": 9})), LIMITS)
    assert [p.source for p in found.parts] == [
        UrlSource("https", "HTTPS://h/x.png"),
        UrlSource("s3", "s3://b/k.png"),
        FileSource("file-1"),
    ]
    assert found.body["messages"][0]["content"] == [{"type": "image_url", "image_url": None}] * 3, "no uuid of a client"
    assert found.parts[0].options == {"mm_processor_kwargs": {"images_kwargs": {"size": {"longest_edge": 9}}}}


@pytest.mark.parametrize(
    ("part", "kind", "code"),
    [
        ({"type": "audio_url", "audio_url": {"url": URL}}, UnsupportedMediaType, "media_type_unsupported"),
        ({"type": "text", "text": "x", "audio_url": "http://h"}, UnsupportedMediaType, "media_type_unsupported"),
        ({"type": "image_embeds", "image_embeds": "x"}, UnsupportedMediaType, "media_type_unsupported"),
        ({"type": "hologram"}, UnsupportedMediaType, "media_type_unsupported"),
        ({"type": ["text"], "text": "x"}, InvalidRequest, "media_part_invalid"),
        ({"type": "text", "text": "x", "uuid": "u", "image_url": "http://10.1/"}, InvalidRequest, "media_part_invalid"),
        ({"type": "image_url", "image_url": "s3://h/", "video_url": "s3://h/"}, InvalidRequest, "media_part_invalid"),
        ({"type": "video_url", "video_url": None, "uuid": "u"}, InvalidRequest, "media_url_invalid"),
        ({"type": "video_url", "video_url": {"url": 3}}, InvalidRequest, "media_url_invalid"),
        (video("file:///etc/passwd"), InvalidRequest, "media_url_invalid"),
        (video("data:video/mp4;base64"), InvalidRequest, "media_url_invalid"),
        (video("data:video/jpeg;base64,AAAA,BBBB"), UnsupportedMediaType, "media_frames_unsupported"),
        (video("data:Video/JPEG;base64," + "AAAA," * 10_000), UnsupportedMediaType, "media_frames_unsupported"),
    ],
)  # fmt: skip
def test_parts_that_are_not_taken_are_named(part: Any, kind: type, code: str) -> None:
    error = refusal(body({"type": "text", "text": "q"}, part))
    assert type(error) is kind
    assert error.stable_code == code
    assert error.errors[0].field == "messages[0].content[1]"
    assert error.remedy or code == "media_part_invalid"


def test_one_video_and_eight_images_a_message() -> None:
    picture = {"type": "image_url", "image_url": "https://h/a.png"}
    assert len(locate(raw(body(*[picture] * 8, video())), LIMITS).parts) == 9
    error = refusal(body(*[picture] * 9))
    assert (error.status, error.stable_code, error.errors[0].field) == (413, "too_many_media", "messages[0].content[8]")
    assert refusal(body(video(), video())).stable_code == "too_many_media"
    assert refusal(body(*[picture] * 200)).stable_code == "too_many_media"
    many = {"messages": [{"role": "user", "content": [video()]}] * 5}
    assert "a request may hold 4" in refusal(many).detail


def test_options_are_checked_once_for_all_parts() -> None:
    error = refusal(body(video(), media_io_kwargs={"video": {"backend": "other"}}))
    assert (error.status, error.stable_code) == (400, "media_option_invalid")
    assert error.errors[0].field == "media_io_kwargs.video.backend"
    for where, kwargs in (("mm_processor_kwargs.fps", {"fps": 4}), ("mm_processor_kwargs.videos_kwargs.size", SCOPED)):
        for parts in ([], [{"type": "image_url", "image_url": "s3://b/k.png"}]):
            error = refusal(body(*parts, mm_processor_kwargs=kwargs))
            assert (error.status, error.stable_code, error.errors[0].field) == (400, "media_option_invalid", where)


def test_a_response_of_pictures_has_no_use_for_frame_options() -> None:
    for turns in ("x", [{"role": "user", "content": [{"type": "input_image", "image_url": "s3://b/k.png"}]}]):
        with pytest.raises(InvalidRequest) as caught:
            locate(raw({"input": turns, "media_io_kwargs": {"video": {"fps": 1}}}), LIMITS, "input")
        assert caught.value.stable_code == "media_option_invalid"
        assert caught.value.errors[0].field == "media_io_kwargs.video.fps"


def test_bodies_without_media_pass_as_they_are() -> None:
    for value in ({}, {"messages": "x"}, {"messages": [1, {"content": "hello"}, {"content": ["a"]}]}):
        assert locate(raw(value), LIMITS).body == value
    assert refusal(b"[]").status == 400
    assert refusal(b"").status == 400
