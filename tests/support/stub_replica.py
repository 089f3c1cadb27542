"""A STUB of a vLLM server: it answers chat, completions and responses as vLLM 0.32 was seen to answer, and understands
nothing.

Seen: the refusal of a uuid without data that it does not hold, error objects whose code is a number, usage with
multimodal tokens, a first chunk with a role, `[DONE]`, and the abort of what a client no longer waits for.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER

Turn = Callable[["StubReplica", web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]


def vllm_error(status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}, status=status
    )


class StubReplica:
    """
    Attributes:
        turns: what the next requests meet instead of an answer, in order; each returns None to go on as usual.
        items: how many media items it holds, least recently used first.
        gate: cleared, answers wait before their first token.
        exposition: what /metrics answers; None hangs. `scrapes` counts.
    """

    def __init__(self, name: str, secret: str, *, items: int = 64, tokens: int = 3) -> None:
        self.name, self.secret, self.items, self.tokens = name, secret, items, tokens
        self.held: OrderedDict[str, str] = OrderedDict()
        self.turns: list[Turn] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.encoded: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = 0
        self.most_running = 0
        self.aborted = 0
        self.healthy = True
        self.exposition: str | None = ""
        self.scrapes = 0
        self.news = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.tls: ssl.SSLContext | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls or self.tls
        app = web.Application(client_max_size=2**30, middlewares=[self._secret])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            app.router.add_post(path, self._chat)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def until(self, true: Callable[[], bool], within_s: float = 10) -> None:
        async with asyncio.timeout(within_s), self.news:
            await self.news.wait_for(true)

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    @web.middleware
    async def _secret(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.getall(SECRET_HEADER, []) != [self.secret]:
            return web.Response(status=401, text="unauthorized\n")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        if self.exposition is None:
            await asyncio.Event().wait()
        return web.Response(text=self.exposition or "")

    async def _models(self, _: web.Request) -> web.Response:
        row = {"id": MODEL_NAME, "object": "model", "created": 1, "owned_by": "vllm", "root": "/models/secret-place",
               "parent": None, "max_model_len": 16384}  # fmt: skip
        return web.json_response({"object": "list", "data": [row]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self._tell()
            if self.turns and (answer := await self.turns.pop(0)(self, request, body)) is not None:
                return answer
            missing = self._take_media(body)
            if missing is not None:
                return missing
            if body.get("stream"):
                if "input" in body:
                    return await self._typed_stream(request, body)
                return await self._stream(request, body)
            await self.gate.wait()
            return web.json_response(self._response(body) if "input" in body else self._whole(body))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._tell())

    def _take_media(self, body: dict[str, Any]) -> web.Response | None:
        counts = {"image": 0, "video": 0}
        turns = body.get("messages", body.get("input"))
        for message in turns if isinstance(turns, list) else ():
            content = message.get("content")
            for part in content if isinstance(content, list) else ():
                kind = {"video_url": "video", "image_url": "image", "input_image": "image"}.get(part.get("type", ""))
                if kind is None:
                    continue
                value, uuid = part.get("video_url") or part.get("image_url"), part.get("uuid")
                value = {"url": value} if isinstance(value, str) else value
                if value is None and uuid not in self.held:
                    text = f"Cache miss for {kind} at index {counts[kind]} but data is not provided."
                    return vllm_error(400, text)
                if value is not None and (uuid is None or uuid not in self.held):
                    self.encoded.append(uuid or "")
                if uuid is not None:
                    self.held[uuid] = value["url"] if value is not None else self.held[uuid]
                    self.held.move_to_end(uuid)
                    while len(self.held) > self.items:
                        self.held.popitem(last=False)
                counts[kind] += 1
        return None

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        videos = json.dumps(body).count('"type": "video_url"')
        return {"prompt_tokens": 12, "completion_tokens": self.tokens, "total_tokens": 12 + self.tokens,
                "prompt_tokens_details": {"cached_tokens": 0, "multimodal_tokens": {"video": 40 * videos}}}  # fmt: skip

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        words = self.name + " word" * self.tokens
        if "prompt" in body:
            prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
            choices = [
                {"index": i, "text": words, "finish_reason": "stop", "logprobs": None} for i in range(len(prompts))
            ]
            return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"],
                    "choices": choices, "usage": self._usage(body)}  # fmt: skip
        message = {"role": "assistant", "content": words}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"],
                "choices": [choice], "usage": self._usage(body)}  # fmt: skip

    def _response(self, body: dict[str, Any], status: str = "completed") -> dict[str, Any]:
        text = {"type": "output_text", "text": self.name + " word" * self.tokens, "annotations": [], "logprobs": None}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [text]}
        usage = {"input_tokens": 12, "output_tokens": self.tokens, "total_tokens": 12 + self.tokens,
                 "input_tokens_details": {"cached_tokens": 0},
                 "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        return {"id": "resp_1", "object": "response", "created_at": 1, "model": body["model"], "status": status,
                "output": [message] if status == "completed" else [], "usage": usage, "parallel_tool_calls": True,
                "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0}  # fmt: skip

    async def _typed_stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Two events come before the engine has done anything; after the last one the connection just ends."""
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        begun = self._response(body, "in_progress")
        await self.typed(answer, "response.created", response=begun)
        await self.typed(answer, "response.in_progress", response=begun)
        await self.gate.wait()
        if self.turns and (told := await self.turns.pop(0)(self, request, body)) is not None:
            return told
        whole = self._response(body)
        (message,) = whole["output"]
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        await self.typed(answer, "response.output_item.added", output_index=0, item={**message, "content": []})
        await self.typed(answer, "response.content_part.added", part=part, **where)
        for word in message["content"][0]["text"].split():
            await self.typed(answer, "response.output_text.delta", delta=f"{word} ", logprobs=[], **where)
        await self.typed(answer, "response.output_item.done", output_index=0, item=message)
        await self.typed(answer, "response.completed", response=whole)
        await answer.write_eof()
        return answer

    @staticmethod
    async def typed(answer: web.StreamResponse, kind: str, **fields: Any) -> None:
        event = {"type": kind, "sequence_number": 1, **fields}
        await answer.write(f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode())

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await self.gate.wait()
        if "prompt" in body:
            for number in range(self.tokens):
                choice = {"index": 0, "text": f"{self.name} " if number == 0 else "word ", "logprobs": None,
                          "finish_reason": "stop" if number == self.tokens - 1 else None}  # fmt: skip
                chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL_NAME,
                         "choices": [choice]}  # fmt: skip
                await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await answer.write(b"data: [DONE]\n\n")
            await answer.write_eof()
            return answer
        await self.event(answer, {"role": "assistant", "content": ""})
        for number in range(self.tokens):
            await self.event(answer, {"content": f"{self.name} " if number == 0 else "word "})
        await self.event(answer, {}, finish_reason="stop")
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL_NAME,
                     "choices": [], "usage": self._usage(body)}  # fmt: skip
            await answer.write(b"data: " + json.dumps(usage).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer

    @staticmethod
    async def event(answer: web.StreamResponse, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL_NAME,
                 "choices": [choice]}  # fmt: skip
        await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


# ---- turns ----------------------------------------------------------------------------------------------------------


def says(status: int, message: str, kind: str = "BadRequestError", headers: dict[str, str] | None = None) -> Turn:
    """Refuse with this status."""

    async def turn(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = vllm_error(status, message, kind)
        answer.headers.update(headers or {})
        return answer

    return turn


async def dies(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> None:
    """Break the connection, answering nothing."""
    stub.healthy = False
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(0)


async def hangs(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> None:
    """Answer nothing for as long as the client waits."""
    await asyncio.Event().wait()


def breaks(event: bytes | None = None) -> Turn:
    """Begin a stream, then send this event and end in order, or (None) break the connection."""

    async def turn(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await stub.event(answer, {"role": "assistant", "content": ""})
        await stub.event(answer, {"content": "half "})
        if event is None:
            assert request.transport is not None
            await asyncio.sleep(0.05)
            request.transport.abort()
        else:
            await answer.write(event)
            await answer.write_eof()
        return answer

    return turn
