"""Multipart bodies, however they are cut: one file, short fields, and bounds."""

from collections.abc import AsyncIterator

import pytest

from cosmos3_serve.errors import InvalidRequest, UnsupportedMediaType
from cosmos3_serve.service.multipart import FormReader

TYPE = b"multipart/form-data; boundary=cut"


def form(*parts: tuple[str, bytes]) -> bytes:
    found = b"".join(
        b"--cut\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + data + b"\r\n"
        for head, data in parts
    )
    return found + b"--cut--\r\n"


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(data: bytes, size: int = 7, content_type: bytes = TYPE) -> tuple[FormReader, bytes]:
    reader = FormReader(content_type)
    return reader, b"".join([piece async for piece in reader.file(in_pieces(data, size))])


@pytest.mark.parametrize("size", [1, 2, 13, 10_000])
async def test_the_file_is_the_same_however_it_is_cut(size: int) -> None:
    content = b"\r\n--cu\r\n--cut?" + bytes(range(256)) * 3
    data = form(('name="purpose"', b"vision"), ('name="file"; filename="a b.mp4"', content), ('name="late"', b"x"))
    reader, found = await read(data, size)
    assert found == content
    assert reader.form.filename == "a b.mp4"
    assert reader.form.fields == {"purpose": "vision", "late": "x"}


@pytest.mark.parametrize(
    "data",
    [
        form(('name="file"; filename="a"', b"1"), ('name="file"; filename="b"', b"2")),
        form(('name="file"', b"no filename")),
        form(('name="big"', b"x" * 70_000), ('name="file"; filename="a"', b"1")),
        form(('name="file"; filename="a"', b"1"))[:-10],
        form(*[(f'name="f{n}"', b"x") for n in range(40)]),
        b"nonsense",
        b"",
    ],
)
async def test_what_is_no_form_with_one_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await read(data, 1000)
    assert refused.value.stable_code == "multipart_invalid"


@pytest.mark.parametrize("kind", [b"", b"application/json", b"multipart/form-data", b"multipart/mixed; boundary=x"])
def test_another_type_is_refused(kind: bytes) -> None:
    with pytest.raises(UnsupportedMediaType):
        FormReader(kind)


async def test_fields_after_the_file_have_their_own_bound_whatever_the_files_size() -> None:
    late = [(f'name="f{n}"', b"x" * 60_000) for n in range(20)]
    file = ('name="file"; filename="a"', b"y" * 3_000_000)
    reader, found = await read(form(file, *late[:10]), 65_536)
    assert (len(found), len(reader.form.fields)) == (3_000_000, 10)
    for size in (1000, 65_536, 10_000_000):
        with pytest.raises(InvalidRequest, match="beside the file hold more than"):
            await read(form(file, *late), size)
