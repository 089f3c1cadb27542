"""The seed's workload as one worker of eight sees it: questions about videos, cold ones and warm ones.

`affinity`      sessions of 20 questions about one video each: the first is cold, 1 of 20
`round-robin`   2 or 3 questions about each video, four videos live at a time: with 8 workers in turn, 8 of a video's 20
                questions find a worker that has not seen it, 8 of 20

A clip is made another video by a random MP4 `free` box at its end. It plays the same and has another SHA-256, so the
gateway gives it another name and no cache of the service or of the engine knows it: it is decoded, processed, encoded
and prefilled like any other, and a few carried clips are as many videos as a run needs.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

AFFINITY, ROUND_ROBIN = "affinity", "round-robin"
SESSION = 20
LIVE = 4
SHARES = {AFFINITY: (1, 20), ROUND_ROBIN: (8, 20)}
TOPICS = (
    "the moving shape", "the background", "the brightest region", "the left edge", "the right edge", "the top half",
    "the bottom half", "the centre", "changes of colour", "the pattern", "the first five seconds", "the last five "
    "seconds", "the largest shape", "the smallest shape", "the direction of motion", "the speed", "repetitions",
    "the lighting", "the scene as a whole", "the end of the clip",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One question. `session` is known by its video; `turn` 0 is the cold one."""

    session: int
    turn: int

    @property
    def cold(self) -> bool:
        return self.turn == 0


def affinity(sessions: int) -> list[list[Job]]:
    """One list a session; a client works through one session after the other."""
    return [[Job(session, turn) for turn in range(SESSION)] for session in range(sessions)]


def round_robin(videos: int, seed: int = 7) -> list[Job]:
    """
    Args:
        videos: a multiple of `LIVE`; half of them get 3 questions, half 2.

    Raises:
        ValueError: not a multiple.
    """
    if videos % LIVE:
        raise ValueError(f"{videos} videos: give a multiple of {LIVE}")
    chance = random.Random(seed)
    jobs: list[Job] = []
    for first in range(0, videos, LIVE):
        group = [video for n, video in enumerate(range(first, first + LIVE)) for _ in range(3 if n % 2 == 0 else 2)]
        chance.shuffle(group)
        asked = dict.fromkeys(group, 0)
        for video in group:
            jobs.append(Job(video, asked[video]))
            asked[video] += 1
    return jobs


class Turns:
    """Hands out jobs in order, never two of one session at a time, and no turn before the turns before it."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._left = list(jobs)
        self._busy: set[int] = set()

    def take(self) -> Job | None:
        """The next job that may start; None while there is none (or at the end: see `left`)."""
        for place, job in enumerate(self._left):
            if job.session not in self._busy and not any(j.session == job.session for j in self._left[:place]):
                self._busy.add(job.session)
                return self._left.pop(place)
        return None

    def done(self, job: Job) -> None:
        self._busy.discard(job.session)

    @property
    def left(self) -> int:
        return len(self._left)


def another(clip: bytes, number: int, seed: int) -> bytes:
    """The same moving pictures, another content: see the module."""
    noise = random.Random(f"{seed}-{number}").randbytes(24)
    return clip + struct.pack(">I4s", 8 + len(noise), b"free") + noise


def question(number: int, turn: int) -> str:
    """Texts that differ from the second word on, as users' do."""
    return f"About {TOPICS[(number + turn) % len(TOPICS)]}, question {number}.{turn}: what happens, and when?"


def body(model: str, clip: bytes, words: str, tokens: int) -> bytes:
    """A streamed chat completion about one video, as a data URL with every question, of exactly `tokens` tokens."""
    url = "data:video/mp4;base64," + base64.b64encode(clip).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": words}]
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def text_body(model: str, words: str, tokens: int) -> bytes:
    """The same without a video."""
    said = json.loads(body(model, b"", words, tokens))
    said["messages"][0]["content"] = words
    return json.dumps(said).encode()
