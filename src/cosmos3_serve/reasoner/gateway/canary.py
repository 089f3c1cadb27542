"""Canary: a text and a video that each life of a replica must answer before the service calls itself ready, and again
after it has failed a question.

The video is made here, so that a decoder that is missing in the replica's environment is found at start and not by the
first client.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import structlog

from cosmos3_serve.reasoner.fleet.member import Member
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.parts import Payload
from cosmos3_serve.reasoner.gateway.upstream import Lost, Silent, Unreachable

log = structlog.get_logger(__name__)

WIDTH, HEIGHT, FRAMES, FPS = 96, 64, 8, 4
ASK_S = 120.0
AGAIN_S = 5.0
QUESTION = "Canary: answer with one word."


class Canary:
    """Asks each life of a replica once; what failed is asked again after a while."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._passed: set[ReplicaRef] = set()
        self._failures: dict[ReplicaRef, str] = {}
        self._running: dict[ReplicaRef, asyncio.Task[None]] = {}
        self._clip = b""

    def look(self) -> None:
        """Start what is missing; called after news of the fleet."""
        members = {m.ref: m for m in self._front.ready_members()}
        self._passed &= members.keys()
        self._failures = {ref: why for ref, why in self._failures.items() if ref in members}
        for ref, member in members.items():
            if ref not in self._passed and ref not in self._running:
                self._running[ref] = asyncio.create_task(self._until_passed(member))
        for ref in [ref for ref in self._running if ref not in members]:
            self._running.pop(ref).cancel()

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def examine(self, member: Member, within_s: float) -> bool | None:
        """Ask a replica that failed a request once more; None: it did not answer in time."""
        try:
            async with asyncio.timeout(within_s):
                why = await self._ask(member)
        except TimeoutError:
            log.warning("canary_failed", replica=member.replica_id, reason="no answer in time")
            return None
        if why:
            self._failures[member.ref] = why
            log.warning("canary_failed", replica=member.replica_id, reason=why)
            return False
        self._failures.pop(member.ref, None)
        return True

    def verdict(self) -> tuple[bool, str]:
        """For /ready: some replica has passed, and none that serves has failed."""
        if self._failures:
            ref, why = next(iter(self._failures.items()))
            return bool(self._passed), f"{ref.id}: {why}"
        if not self._passed:
            sleeps = not self._front.settings.workers.least
            return sleeps, "no replica has answered the canary's text and video yet"
        return True, f"{len(self._passed)} replica(s) answered a text and a video"

    async def _until_passed(self, member: Member) -> None:
        try:
            while True:
                why = await self._ask(member)
                if not why:
                    self._passed.add(member.ref)
                    self._failures.pop(member.ref, None)
                    log.info("canary_passed", replica=member.replica_id)
                    return
                self._failures[member.ref] = why
                log.warning("canary_failed", replica=member.replica_id, reason=why)
                await asyncio.sleep(AGAIN_S)
        finally:
            if self._running.get(member.ref) is asyncio.current_task():
                del self._running[member.ref]

    async def _ask(self, member: Member) -> str:
        """Why a replica did not pass; empty when it did."""
        self._clip = self._clip or await asyncio.to_thread(make_clip)
        url = "data:video/mp4;base64," + base64.b64encode(self._clip).decode()
        text: dict[str, Any] = {"type": "text", "text": QUESTION}
        video = {"type": "video_url", "video_url": {"url": url}}
        for what, content in (("text", [text]), ("video", [video, text])):
            try:
                async with asyncio.timeout(ASK_S):
                    why = await self._one(member, content, what == "video")
            except (Unreachable, Lost):
                return f"the {what} canary lost its connection"
            except (Silent, TimeoutError):
                return f"the {what} canary had no answer in time"
            if why:
                return f"the {what} canary failed: {why}"
        return ""

    async def _one(self, member: Member, content: list[dict[str, Any]], video: bool) -> str:
        body = {
            "model": self._front.setup.model.name,
            "messages": [{"role": "user", "content": content}],
            "max_completion_tokens": 4,
            "temperature": 0,
        }
        reply = await self._front.upstream.ask(member.url, Payload((json.dumps(body).encode(),)))
        try:
            if reply.status != 200:
                return (await reply.refusal()).message
            answer = json.loads(await reply.whole())
            if not answer["choices"]:
                return "the answer holds no choice"
            if video and not video_tokens(answer.get("usage") or {}):
                return "the answer's usage counts no video tokens"
        except (ValueError, KeyError, TypeError):
            return "the answer is not a chat completion"
        finally:
            reply.close()
        return ""


def video_tokens(usage: dict[str, Any]) -> int:
    """Prompt tokens that came from videos, 0 where the usage does not say."""
    details = usage.get("prompt_tokens_details") or {}
    return int((details.get("multimodal_tokens") or {}).get("video") or 0)


def make_clip() -> bytes:
    """A moving square as H.264 in MP4: 2 seconds. Blocking, some milliseconds."""
    import av
    from PIL import Image

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            picture = Image.new("RGB", (WIDTH, HEIGHT), (16, 32, 64))
            left = number * 8
            picture.paste((255, 128, 0), (left, 16, left + 16, 32))
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return out.getvalue()
