"""A multipart/form-data body that holds at most one file and some short fields, read as it arrives.

Fields may stand before the file or after it; they have a bound of their own, whatever the file's size.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from cosmos3_serve.errors import FieldError, InvalidRequest, UnsupportedMediaType

MAX_FIELD_BYTES = 64 * 1024
MAX_PARTS = 32
MAX_HEADER_BYTES = 8 * 1024
MAX_FORM_BYTES = 1024 * 1024  # of everything but the file: boundaries, headers, fields


@dataclass(slots=True)
class Form:
    """Args: fields: short ones, by name; `filename`: of the file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    has_file: bool = False


class FormReader:
    """
    Args:
        content_type: the request's header.
        max_field_bytes, max_form_bytes: of one field; of everything but the file, boundaries and headers included.

    Raises:
        UnsupportedMediaType: no multipart/form-data, or one without a boundary.
    """

    def __init__(
        self, content_type: bytes, *, max_field_bytes: int = MAX_FIELD_BYTES, max_form_bytes: int = MAX_FORM_BYTES
    ) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary or len(boundary) > 256:
            raise UnsupportedMediaType("send multipart/form-data with a file", code="multipart_expected")
        self.form = Form()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_done,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._all,
            },
        )
        self._max_field_bytes, self._max_form_bytes = max_field_bytes, max_form_bytes
        self._parts = 0
        self._complete = False
        self._file: list[bytes] = []
        self._reset()

    async def file(
        self, chunks: AsyncIterator[bytes], name: str = "file", *, required: bool = True
    ) -> AsyncIterator[bytes]:
        """The bytes of the file part called `name`, while `form` fills.

        Raises:
            InvalidRequest: code `multipart_invalid`: cut short, malformed, with two files or a field twice, or without
                a file that is `required`.
        """
        self._wanted = name
        others = 0
        async for chunk in chunks:
            others += len(chunk)
            try:
                self._parser.write(chunk)
            except MultipartParseError:
                raise _invalid("the multipart body is malformed") from None
            others -= sum(map(len, self._file))
            if others > self._max_form_bytes:
                raise _invalid(f"the parts beside the file hold more than {self._max_form_bytes} bytes")
            for piece in self._file:
                yield piece
            self._file.clear()
        if not self._complete:
            raise _invalid("the multipart body ends before its last boundary")
        if required and not self.form.has_file:
            raise _invalid(f"there is no part {name!r} with a filename", name)

    # ---- the parser's events ----------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._name, self._value = b"", b""
        self._disposition = b""
        self._text: bytearray | None = None
        self._field = ""
        self._in_file = False

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _invalid(f"there are more than {MAX_PARTS} parts")
        self._reset()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name = self._bounded(self._name + data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._bounded(self._value + data[start:end])

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name, self._value = b"", b""

    def _headers_done(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == self._wanted and b"filename" in options:
            if self.form.has_file:
                raise _invalid("there are two files", name)
            self.form.has_file = self._in_file = True
            self.form.filename = options[b"filename"].decode("utf-8", "replace")
            return
        self._field, self._text = name, bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._file.append(data[start:end])
        elif self._text is not None:
            self._text += data[start:end]
            if len(self._text) > self._max_field_bytes:
                raise _invalid(f"a field is longer than {self._max_field_bytes} bytes", self._field[:100])

    def _end(self) -> None:
        if self._text is not None and self._field:
            if self._field in self.form.fields:
                raise _invalid("the field is there twice", self._field[:100])
            self.form.fields[self._field] = self._text.decode("utf-8", "replace")
        self._reset()

    def _all(self) -> None:
        self._complete = True

    def _bounded(self, data: bytes) -> bytes:
        if len(data) > MAX_HEADER_BYTES:
            raise _invalid("a part's header is too long")
        return data


def _invalid(message: str, name: str = "file") -> InvalidRequest:
    return InvalidRequest(message, code="multipart_invalid", errors=(FieldError(name, message),))
