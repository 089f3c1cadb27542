"""Data URLs as clients write them."""

import base64
import os

import pytest

from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.dataurl import decode, parse_data_url

DATA = os.urandom(1000) + b"\xff\xfe\xfd"
TEXT = base64.b64encode(DATA).decode()


def decoded(url: str, max_bytes: int = 10_000) -> tuple[str, bytes]:
    source = parse_data_url(memoryview(url.encode()), "video")
    return source.mime, decode(source, max_bytes)


@pytest.mark.parametrize(
    "url",
    [
        f"data:video/mp4;base64,{TEXT}",
        f"DATA:Video/MP4;Base64,{TEXT}",
        f"data:video/mp4;codecs=avc1;base64,{TEXT}",
        f"data:video/mp4; base64,{TEXT}",
        f"data:video/mp4;base64,{TEXT.rstrip('=')}",
        f"data:video/mp4;base64,{TEXT[:70]}\r\n{TEXT[70:]}",
        "data:video/mp4;base64," + TEXT.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        "data:video/mp4," + "".join(f"%{byte:02X}" for byte in DATA),
    ],
)
def test_ways_to_write_the_same_bytes(url: str) -> None:
    assert decoded(url) == ("video/mp4", DATA)


def test_no_type_is_no_type() -> None:
    assert decoded(f"data:;base64,{TEXT}")[0] == ""


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("data:video/mp4;base64,", 400, "media_empty"),
        ("data:video/mp4;base64,$$$$", 400, "media_base64_invalid"),
        ("data:video/mp4;base64,AAAAA", 400, "media_base64_invalid"),
        ("data:video/mp4;base64,AAé", 400, "media_base64_invalid"),
        ("data:video/mp4;base64", 400, "media_url_invalid"),
        ("data:" + "x" * 500 + ",", 400, "media_url_invalid"),
        ("data:vidéo/mp4;base64,AAAA", 400, "media_url_invalid"),
        ("data:video/mp4;base64," + "A" * 20_000, 413, "media_too_large"),
        ("data:video/jpeg;base64,AAAA,BBBB", 415, "media_frames_unsupported"),
        ("data:VIDEO/JPEG ;base64,AAAA", 415, "media_frames_unsupported"),
    ],
)
def test_what_is_refused(url: str, status: int, code: str) -> None:
    with pytest.raises(Refused) as caught:
        decoded(url)
    assert (caught.value.status, caught.value.code) == (status, code)
