"""What the replicas' engines say of themselves, in the gateway's own /metrics: one address to scrape, whatever runs.

Names, types and labels are the engine's own (`vllm:…`), so that what reads them reads ours; each sample gets the label
`replica`, the id that every other figure and header uses. Only the families listed here pass. An engine is asked when
somebody asks us, at most once in `PERIOD_S`, all at the same time and none for longer than `ASK_S`; one that does not
answer is shown as it was for `STALE_S`, and what has left the fleet, or came back as another life, is not shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cosmos3_serve.reasoner.fleet.member import Member
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.gateway.upstream import Lost, Silent, Unreachable, Upstream

PERIOD_S = 5.0
ASK_S = 2.0
STALE_S = 30.0
MAX_BYTES = 4 * 1024 * 1024
MAX_SAMPLES = 1000  # of one replica; a histogram of vLLM has some twenty
AT_ONCE = 16

# Family -> (type, meaning). vLLM 0.32 counts nothing of its encoder cache.
FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "vllm:num_requests_running": ("gauge", "Questions that the engine works on."),
    "vllm:num_requests_waiting": ("gauge", "Questions that wait in the engine."),
    "vllm:kv_cache_usage_perc": ("gauge", "Share of the KV cache that is in use, 0 to 1."),
    "vllm:prefix_cache_queries": ("counter", "Prompt tokens looked up in the prefix cache."),
    "vllm:prefix_cache_hits": ("counter", "Prompt tokens found there."),
    "vllm:mm_cache_queries": ("counter", "Videos and images looked up in the processor cache."),
    "vllm:mm_cache_hits": ("counter", "Videos and images found there: not processed again."),
    "vllm:prompt_tokens": ("counter", "Prompt tokens worked on."),
    "vllm:generation_tokens": ("counter", "Tokens of answers."),
    "vllm:num_preemptions": ("counter", "Questions put back for want of KV cache."),
    "vllm:request_success": ("counter", "Finished questions by reason."),
    "vllm:time_to_first_token_seconds": ("histogram", "Seconds to the first token, in the engine."),
    "vllm:inter_token_latency_seconds": ("histogram", "Seconds between two tokens of an answer."),
    "vllm:e2e_request_latency_seconds": ("histogram", "Seconds of a question in the engine."),
    "vllm:request_queue_time_seconds": ("histogram", "Seconds of waiting in the engine."),
}
_AGE, _AGE_TEXT = "cosmos3_reasoner_replica_figures_age_seconds", "Seconds since a replica's engine told its figures."
_ENDINGS = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
_SERIES = {name + end: name for name, (kind, _) in FAMILIES.items() for end in _ENDINGS[kind]}
_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\]|\\.)*"'
_SAMPLE = re.compile(rf"(?P<name>[\w:]+)(?:\{{(?P<labels>(?:{_LABEL}(?:,{_LABEL})*)?)\}})? (?P<value>\S+)", re.ASCII)

Samples = Mapping[str, list[str]]  # family -> its lines


@dataclass(slots=True)
class _Told:
    at: float
    samples: Samples


class ReplicaFigures:
    """
    Args:
        upstream: asks replicas, with the cluster's secret.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._told: dict[ReplicaRef, _Told] = {}
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def render(self, members: Iterable[Member], now: float) -> bytes:
        """Exposition text of what the members' engines say, asked for now if the last time is long enough ago."""
        members = list(members)
        async with self._asking:  # who comes meanwhile waits for the same answers
            if now - self._asked_at >= PERIOD_S:
                self._asked_at = now
                await asyncio.gather(*(self._ask(member, now) for member in members))
        here = {member.ref for member in members}
        self._told = {ref: t for ref, t in self._told.items() if ref in here and now - t.at < STALE_S}
        return "".join(self._lines(now)).encode()

    async def _ask(self, member: Member, now: float) -> None:
        async with self._slots:
            try:
                status, body = await self._upstream.get(member.url, "/metrics", ASK_S, MAX_BYTES)
            except (Unreachable, Lost, Silent):
                return
        if status == 200:
            self._told[member.ref] = _Told(now, read_samples(body.decode("utf-8", "replace"), member.replica_id))

    def _lines(self, now: float) -> Iterable[str]:
        told = [self._told[ref] for ref in sorted(self._told)]
        if not told:
            return
        yield f"# HELP {_AGE} {_AGE_TEXT}\n# TYPE {_AGE} gauge\n"
        for ref in sorted(self._told):
            yield f'{_AGE}{{replica="{ref.id}"}} {max(0.0, now - self._told[ref].at):.3f}\n'
        for name, (kind, text) in FAMILIES.items():
            lines = [line for one in told for line in one.samples.get(name, ())]
            if lines:
                # The classic text format: a counter's family is named as its samples are.
                shown = name + "_total" if kind == "counter" else name
                yield f"# HELP {shown} {text}\n# TYPE {shown} {kind}\n"
                yield "\n".join(lines) + "\n"


def read_samples(exposition: str, replica: str) -> Samples:
    """The samples of the listed families with the label `replica`; whatever is not one of them, or malformed, is
    left out."""
    found: dict[str, list[str]] = {}
    left = MAX_SAMPLES
    for line in exposition.splitlines():
        if not line.startswith("vllm:") or (match := _SAMPLE.fullmatch(line)) is None:
            continue
        family = _SERIES.get(match["name"])
        if family is None or not _is_number(match["value"]):
            continue
        if not left:
            break
        left -= 1
        labels = ",".join(filter(None, (f'replica="{replica}"', match["labels"])))
        found.setdefault(family, []).append(f"{match['name']}{{{labels}}} {match['value']}")
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
