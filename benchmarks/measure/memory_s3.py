"""An S3 server in memory that copies each byte once: for measuring a client, not a server. Started as a module:

python -m measure.memory_s3     prints its port
"""

from __future__ import annotations

import hashlib
import socket
import threading
from urllib.parse import parse_qs, unquote, urlsplit

HEAD_BYTES = 64 * 1024
OBJECTS: dict[str, tuple[list[bytearray], str]] = {}  # parts as they came, entity tag
UPLOADS: dict[str, dict[int, bytearray]] = {}
LOCK = threading.Lock()


def answer(status: int, body: bytes = b"", **fields: object) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {fields.pop('length', len(body))}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def error(status: int, code: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code></Error>".encode())


def handle(method: str, target: str, fields: dict[str, str], body: bytearray) -> tuple[bytes, list[memoryview]]:
    """The answer, and what follows it of an object."""
    with LOCK:
        parts = urlsplit(target)
        key, query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
        if method in ("GET", "HEAD") and "list-type" not in query:
            return read(method, key, fields)
        return change(method, key, query, fields, body), []


def change(method: str, key: str, query: dict[str, list[str]], fields: dict[str, str], body: bytearray) -> bytes:
    if method == "PUT":
        if "partNumber" in query:
            UPLOADS[query["uploadId"][0]][int(query["partNumber"][0])] = body
            return answer(200, ETag='"part"')
        held = OBJECTS.get(key)
        other = "if-match" in fields and (not held or held[1] != fields["if-match"])
        if other or ("if-none-match" in fields and held):
            return error(412, "PreconditionFailed")
        return answer(200, ETag=stored(key, [body]))
    if method == "POST" and "uploads" in query:
        name = f"u{len(UPLOADS)}"
        UPLOADS[name] = {}
        return answer(200, f"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{name}</UploadId>"
                           "</InitiateMultipartUploadResult>".encode())  # fmt: skip
    if method == "POST":
        pieces = UPLOADS[query["uploadId"][0]]
        tag = stored(key, [pieces.pop(number) for number in sorted(pieces)])
        return answer(
            200, f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>".encode()
        )
    if method == "DELETE":
        OBJECTS.pop(key, None)
        return answer(204)
    prefix = key.rstrip("/") + "/" + query.get("prefix", [""])[0]
    rows = "".join(
        f"<Contents><Key>{name[len(key.rstrip('/')) + 1 :]}</Key><Size>{sum(map(len, data))}</Size><LastModified>"
        f"2026-11-30T00:00:00.000Z</LastModified><ETag>{tag}</ETag></Contents>"
        for name, (data, tag) in sorted(OBJECTS.items()) if name.startswith(prefix)
    )  # fmt: skip
    return answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())


def read(method: str, key: str, fields: dict[str, str]) -> tuple[bytes, list[memoryview]]:
    if key not in OBJECTS:
        return (error(404, "NoSuchKey") if method == "GET" else answer(404)), []
    parts, tag = OBJECTS[key]
    size = sum(map(len, parts))
    first, last, status = 0, size - 1, 200
    about: dict[str, object] = {"ETag": tag, "Last_Modified": "Mon, 30 Nov 2026 00:00:00 GMT"}
    if "if-match" in fields and fields["if-match"] != tag:
        return error(412, "PreconditionFailed"), []
    if wanted := fields.get("range", "").removeprefix("bytes="):
        begin, _, end = wanted.partition("-")
        first, last, status = int(begin), min(last, int(end or last)), 206
        if first >= size:
            return error(416, "InvalidRange"), []
        about["Content_Range"] = f"bytes {first}-{last}/{size}"
    views, at = [], 0
    for part in parts if method == "GET" else []:
        views.append(memoryview(part)[max(0, first - at) : max(0, last + 1 - at)])
        at += len(part)
    return answer(status, length=last + 1 - first, **about), views


def stored(key: str, parts: list[bytearray]) -> str:
    start = bytes(parts[0][:4096]) if parts else b""
    tag = f'"{hashlib.blake2b(start, digest_size=16).hexdigest()}-{sum(map(len, parts))}"'
    OBJECTS[key] = (parts, tag)
    return tag


def serve(line: socket.socket) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    held = b""
    with line:
        while True:
            while b"\r\n\r\n" not in held:
                more = line.recv(HEAD_BYTES)
                if not more:
                    return
                held += more
            head, _, held = held.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = first.split(" ", 2)
            fields = {k.strip().lower(): v.strip() for k, _, v in (text.partition(":") for text in lines)}
            size = int(fields.get("content-length", 0))
            if fields.get("expect"):
                line.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = bytearray(size)
            view, at = memoryview(body), min(size, len(held))
            view[:at], held = held[:at], held[at:]
            while at < size:
                got = line.recv_into(view[at:])
                if not got:
                    return
                at += got
            start, views = handle(method, target, fields, body)
            line.sendall(start)
            for piece in views:
                line.sendall(piece)


def quietly(line: socket.socket) -> None:
    try:
        serve(line)
    except ConnectionError:  # the client left
        return


def main() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            line, _ = server.accept()
            threading.Thread(target=quietly, args=(line,), daemon=True).start()


if __name__ == "__main__":
    main()
