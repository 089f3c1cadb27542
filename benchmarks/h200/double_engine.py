"""A double of vLLM's server for dry runs and tests: its caches, its counters and its stream, with no model behind it.

Times are made up (`--cold-s`, `--warm-s`, `--token-s`), so nothing that was measured against it is a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from typing import Any

from aiohttp import web

PROMPT = 6900


class Engine:
    """Args: lose: every so many questions, one token less than asked for (0: never), as a broken engine would."""

    def __init__(self, cold_s: float, warm_s: float, token_s: float, lose: int = 0) -> None:
        self.cold_s, self.warm_s, self.token_s, self.lose = cold_s, warm_s, token_s, lose
        self.held: set[str | int] = set()
        self.counts: Counter[str] = Counter()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**27)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        rows = [f'vllm:{name}{{engine="0"}} {value}' for name, value in self.counts.items()]
        return web.Response(text="\n".join([*rows, 'vllm:num_requests_running{engine="0"} 0.0', ""]))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        said = body["messages"][-1]["content"]
        parts = [p for p in said if p["type"] == "video_url"] if isinstance(said, list) else []
        began, warm = time.perf_counter(), True
        for part in parts:
            self.counts["mm_cache_queries_total"] += 1
            name = part.get("uuid") or hash(part["video_url"]["url"])
            if name in self.held:
                self.counts["mm_cache_hits_total"] += 1
                continue
            if part["video_url"] is None:
                error = {"message": "Cache miss: data is not provided", "type": "BadRequestError", "code": 400}
                return web.json_response({"error": error}, status=400)
            self.held.add(name)
            warm = False
        await asyncio.sleep(self.warm_s if warm else self.cold_s)
        count = int(body.get("max_tokens") or body.get("max_completion_tokens"))
        self.counts["request_success_total"] += 1
        if self.lose and self.counts["request_success_total"] % self.lose == 0:
            count -= 1
        usage: dict[str, Any] = {
            "prompt_tokens": PROMPT, "completion_tokens": count, "total_tokens": PROMPT + count,
            "prompt_tokens_details": {
                "cached_tokens": PROMPT - 20 if warm and parts else 0,
                "multimodal_tokens": {"video": 6600} if parts else {},
            },
        }  # fmt: skip
        self.counts["generation_tokens_total"] += count
        for phase, took in (("queue", 0.0), ("prefill", time.perf_counter() - began), ("decode", count * self.token_s)):
            self.counts[f"request_{phase}_time_seconds_sum"] += took  # type: ignore[assignment]
            self.counts[f"request_{phase}_time_seconds_count"] += 1
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "x" * count}, "finish_reason": "length"}
            return web.json_response({"choices": [choice], "usage": usage})
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        for _ in range(count):
            delta = {"choices": [{"index": 0, "delta": {"content": "x"}}]}
            await answer.write(b"data: " + json.dumps(delta).encode() + b"\n\n")
            await asyncio.sleep(self.token_s)
        if (body.get("stream_options") or {}).get("include_usage"):
            await answer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cold-s", type=float, default=0.05)
    parser.add_argument("--warm-s", type=float, default=0.005)
    parser.add_argument("--token-s", type=float, default=0.0005)
    parser.add_argument("--lose", type=int, default=0)
    args, _ = parser.parse_known_args()
    web.run_app(
        Engine(args.cold_s, args.warm_s, args.token_s, args.lose).app(), host=args.host, port=args.port, print=None
    )


if __name__ == "__main__":
    main()
