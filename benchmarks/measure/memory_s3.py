"""An S3 server in memory, as fast as Python makes one: for measuring a client, not a server. Started as a module:

python -m measure.memory_s3 --delay-ms 10     prints its port; every answer's first byte waits that long each way
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from urllib.parse import parse_qs, unquote, urlsplit

OBJECTS: dict[str, tuple[bytes, str]] = {}
UPLOADS: dict[str, dict[int, bytes]] = {}


def answer(status: int, body: bytes = b"", **fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {fields.pop('length', len(body))}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def error(status: int, code: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code></Error>".encode())


def handle(method: str, target: str, fields: dict[str, str], body: bytes) -> bytes:
    parts = urlsplit(target)
    key, query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
    if method == "PUT":
        if "partNumber" in query:
            UPLOADS[query["uploadId"][0]][int(query["partNumber"][0])] = body
            return answer(200, ETag='"part"')
        held = OBJECTS.get(key)
        other = "if-match" in fields and (not held or held[1] != fields["if-match"])
        if other or ("if-none-match" in fields and held):
            return error(412, "PreconditionFailed")
        return stored(key, body)
    if method == "POST" and "uploads" in query:
        name = f"u{len(UPLOADS)}"
        UPLOADS[name] = {}
        return answer(200, f"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{name}</UploadId>"
                           "</InitiateMultipartUploadResult>".encode())  # fmt: skip
    if method == "POST":
        pieces = UPLOADS.pop(query["uploadId"][0])
        stored(key, b"".join(pieces[number] for number in sorted(pieces)))
        done = f"<CompleteMultipartUploadResult><ETag>{OBJECTS[key][1]}</ETag></CompleteMultipartUploadResult>"
        return answer(200, done.encode())
    if "list-type" in query:
        prefix = key.rstrip("/") + "/" + query.get("prefix", [""])[0]
        rows = "".join(
            f"<Contents><Key>{name[len(key.rstrip('/')) + 1 :]}</Key><Size>{len(data)}</Size><LastModified>"
            f"2026-11-30T00:00:00.000Z</LastModified><ETag>{tag}</ETag></Contents>"
            for name, (data, tag) in sorted(OBJECTS.items()) if name.startswith(prefix)
        )  # fmt: skip
        return answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())
    if method == "DELETE":
        OBJECTS.pop(key, None)
        return answer(204)
    if key not in OBJECTS:
        return error(404, "NoSuchKey") if method == "GET" else answer(404)
    data, tag = OBJECTS[key]
    about = {"ETag": tag, "Last_Modified": "Mon, 30 Nov 2026 00:00:00 GMT"}
    return answer(200, data, **about) if method == "GET" else answer(200, length=str(len(data)), **about)


def stored(key: str, body: bytes) -> bytes:
    tag = f'"{hashlib.blake2b(body[:4096], digest_size=16).hexdigest()}-{len(body)}"'
    OBJECTS[key] = (body, tag)
    return answer(200, ETag=tag)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            if fields.get("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            writer.write(handle(method, target, fields, body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def delayed(port: int, delay_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes both ways, each piece `delay_s` after it came, as a long line does: later pieces are not held up."""
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

    async def one_way(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]](256)

        async def send() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    break
                sink.write(data)
                await sink.drain()
            sink.close()

        sender = asyncio.create_task(send())
        try:
            while data := await source.read(256 * 1024):
                await queue.put((loop.time() + delay_s, data))
        except ConnectionError:
            pass
        await queue.put((0.0, b""))
        await asyncio.gather(sender, return_exceptions=True)

    await asyncio.gather(one_way(reader, far_writer), one_way(far_reader, writer), return_exceptions=True)


async def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--delay-ms", type=float, default=0.0, help="each way")
    options.add_argument("--relay-to", type=int, default=0, help="no S3: a line to this local port")
    chosen = options.parse_args()
    port = chosen.relay_to
    if not port:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
        port = server.sockets[0].getsockname()[1]
    if chosen.delay_ms or chosen.relay_to:
        target, delay_s = port, chosen.delay_ms / 1000
        line = await asyncio.start_server(lambda r, w: delayed(target, delay_s, r, w), "127.0.0.1", 0, limit=2**20)
        port = line.sockets[0].getsockname()[1]
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
