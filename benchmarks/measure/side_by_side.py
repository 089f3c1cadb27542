"""Two systems, two routing profiles, one run: the same clips and questions, in turns, and what is valid of it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure.processes import cpu_s, tree
from measure.result import demand

from cosmos3_serve.bench.load import text_of
from cosmos3_serve.bench.reasoner import Known, Target, prepare, turns
from cosmos3_serve.bench.records import Profile, Run, Workload
from cosmos3_serve.bench.seen import SLACK_TOKENS
from cosmos3_serve.bench.validity import check
from cosmos3_serve.bench.videos import LISTING, VideoSet
from cosmos3_serve.reasoner_client.ask import Reasoner, data_url
from cosmos3_serve.settings import REASONER_TOKEN_ENV

PROFILES: tuple[Profile, ...] = ("round-robin", "session-affinity")
REPLICAS = 2
PILOTS = 2  # clips for each contender: new ones go to the replicas in turn, so that each of them has warmed up
COST_VIDEOS, COST_QUESTIONS = 6, 4
IDLE_S = 3.0
# Load, two replicas and everything else share the cores: alone each question was faster than it will be.
CROWDED = 1.3


@dataclass(frozen=True)
class Contender:
    """One system in one profile.

    Args:
        token: "" where it asks for none.
        pids: roots of its processes.
    """

    system: str
    profile: Profile
    url: str
    token: str
    known: Known
    pids: Callable[[], list[int]]

    @property
    def label(self) -> str:
        return f"{self.system}, {self.profile}"

    def client(self) -> Reasoner:
        return Reasoner(self.url, environ={REASONER_TOKEN_ENV: self.token or "none"})

    def cpu(self) -> float:
        return cpu_s([pid for root in self.pids() for pid in tree(root)])


@dataclass(frozen=True)
class Plan:
    """How much is asked. `sizes`: directories of clips, the wanted one first; `budget_s` is for the repeats."""

    sizes: Sequence[Path]
    videos: int = 24
    questions: int = 8
    tokens: int = 16
    concurrency: int = 4
    repeats: int = 3
    budget_s: float = 600.0

    def workload(self, profile: Profile) -> Workload:
        return Workload(
            profile=profile, videos=self.videos, questions=self.questions, output_tokens=self.tokens,
            concurrency=(self.concurrency,), repeats=self.repeats, fresh=True, transport="data",
        )  # fmt: skip

    def costs(self) -> Workload:
        """Lone questions, out of which the capacity model takes what one costs."""
        return Workload(profile="session-affinity", videos=COST_VIDEOS, questions=COST_QUESTIONS, concurrency=(1,),
                        output_tokens=self.tokens, fresh=True, transport="data")  # fmt: skip

    @property
    def clips(self) -> int:
        """In each directory: fresh ones for each profile, for the costs, and for the pilots of each."""
        return 2 * self.videos * self.repeats + COST_VIDEOS + 2 * PILOTS


@dataclass
class Outcome:
    """What came. `invalid`: label -> its findings; what is in it has no figures."""

    size: str
    runs: dict[str, Run] = field(default_factory=dict)
    costs: dict[str, Run] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    invalid: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


def subset(source: Path, start: int, count: int, into: Path) -> Path:
    """A directory with `count` of the clips of `source` from number `start` on."""
    listing = VideoSet.read(source)
    chosen = listing.videos[start : start + count]
    demand(len(chosen) == count, f"{source.name} holds {len(listing.videos)} clips, {start + count} are needed")
    into.mkdir(parents=True)
    for video in chosen:
        os.link(source / video.name, into / video.name)
    body = listing.model_copy(update={"videos": chosen}).model_dump(mode="json")
    (into / LISTING).write_text(json.dumps(body))
    return into


async def side_by_side(contenders: Sequence[Contender], plan: Plan, base: Path, say: Callable[[str], None]) -> Outcome:
    """Choose the size of the clips, measure costs, then every repeat of every contender in turns.

    Raises:
        InvalidRun: too few clips, no size fits into the time, or the systems are asked different things.
    """
    for size in plan.sizes:
        outcome, expected = await _pilot(contenders, plan, size, base / f"pilot-{size.name}", say)
        say(f"{outcome.size}: the repeats will take about {expected:.0f} s, {plan.budget_s:.0f} s are there")
        if expected <= plan.budget_s:
            break
    else:
        demand(False, "no size of clips fits into the time")
    await _idle(contenders, outcome)
    fresh = plan.videos * plan.repeats
    folders = {profile: subset(size, n * fresh, fresh, base / profile) for n, profile in enumerate(PROFILES)}
    alone = subset(size, 2 * fresh, COST_VIDEOS, base / "costs")
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        targets: dict[int, Contender] = {}
        measured: list[Target] = []
        for contender in contenders:
            client = await stack.enter_async_context(contender.client())
            if contender.profile == "session-affinity":
                prepared = prepare(client, contender.token, plan.costs(), alone, known=contender.known)
                async with prepared as lone:
                    await lone.level(1, 0)
                outcome.costs[contender.system] = lone.run()
                say(f"costs of {contender.system}: measured")
            prepared = prepare(client, contender.token, plan.workload(contender.profile), folders[contender.profile],
                               known=contender.known)  # fmt: skip
            target = await stack.enter_async_context(prepared)
            targets[id(target)] = contender
            measured.append(target)
        for repeat, concurrency, target in turns(measured):
            contender = targets[id(target)]
            used, since = contender.cpu(), time.monotonic()
            await target.level(concurrency, repeat)
            outcome.cpu.setdefault(contender.label, []).append(contender.cpu() - used)
            say(f"repeat {repeat + 1}, {contender.label}: {time.monotonic() - since:.0f} s")
        outcome.runs = {targets[id(target)].label: target.run() for target in measured}
    outcome.seconds = time.monotonic() - began
    for label, run in [*outcome.runs.items(), *((f"costs of {name}", run) for name, run in outcome.costs.items())]:
        if findings := check(run):
            outcome.invalid[label] = [f"{finding.code}: {finding.as_text()}" for finding in findings]
    _same_questions(outcome)
    return outcome


async def _pilot(
    contenders: Sequence[Contender], plan: Plan, size: Path, base: Path, say: Callable[[str], None]
) -> tuple[Outcome, float]:
    """Two clips for each contender, asked about twice: it warms them up, and says how long it will take."""
    recipe = VideoSet.read(size).recipe
    outcome = Outcome(f"{recipe.width}x{recipe.height}")
    first = 2 * plan.videos * plan.repeats + COST_VIDEOS
    expected = 0.0
    for number, contender in enumerate(contenders):
        # Both systems are asked about the same clips, and no engine about one twice.
        place = first + PROFILES.index(contender.profile) * PILOTS
        clips = subset(size, place, PILOTS, base / str(number))
        cold, warm = [], []
        async with contender.client() as client:
            for video in VideoSet.read(clips).videos:
                url = await asyncio.to_thread(data_url, clips / video.name)
                for turn, times in enumerate((cold, warm)):
                    began = time.monotonic()
                    answer = await client.ask(text_of(turn), url, session=f"pilot-{video.name}", max_tokens=plan.tokens,
                                              ignore_eos=True, temperature=0)  # fmt: skip
                    times.append(time.monotonic() - began)
                    if turn == 0:
                        outcome.prompts[contender.label] = int(answer.usage.get("prompt_tokens") or 0)
        say(
            f"pilot, {outcome.size}, {contender.label}: cold {min(cold):.2f} s, again {min(warm):.2f} s, "
            f"{outcome.prompts[contender.label]} prompt tokens"
        )
        if contender.profile == "session-affinity":
            expected += _expected(plan, min(cold), min(warm))
    prompts = outcome.prompts.values()
    demand(
        max(prompts) - min(prompts) <= SLACK_TOKENS, f"the systems make other prompts of one clip: {outcome.prompts}"
    )
    return outcome, expected * CROWDED


def _expected(plan: Plan, cold_s: float, warm_s: float) -> float:
    """Seconds of both profiles of one system, its replicas side by side."""
    total = plan.videos * plan.questions
    colds = plan.videos + plan.videos * min(REPLICAS, plan.questions)
    return plan.repeats * (colds * cold_s + (2 * total - colds) * warm_s) / REPLICAS


async def _idle(contenders: Sequence[Contender], outcome: Outcome) -> None:
    """Cores that each contender keeps busy while nobody asks: the others have to bear that."""
    before, began = [contender.cpu() for contender in contenders], time.monotonic()
    await asyncio.sleep(IDLE_S)
    for contender, used in zip(contenders, before, strict=True):
        outcome.idle[contender.label] = (contender.cpu() - used) / (time.monotonic() - began)


def _same_questions(outcome: Outcome) -> None:
    """In one profile both systems had prompts of the same length about each clip, or the pair says nothing."""
    for profile in PROFILES:
        pair = {label: run for label, run in outcome.runs.items() if run.workload.profile == profile}
        seen = [
            {(r.repeat, r.video, r.turn): r.prompt_tokens or 0 for r in run.requests if r.error is None}
            for run in pair.values()
        ]
        if len(seen) == 2 and any(abs(seen[0][key] - seen[1][key]) > SLACK_TOKENS for key in seen[0] if key in seen[1]):
            for label in pair:
                outcome.invalid.setdefault(label, []).append(
                    "prompts_differ: the systems made other prompts of one clip"
                )


def described(outcome: Outcome) -> dict[str, Any]:
    """Of an outcome, what its sections do not hold."""
    return {"size": outcome.size, "seconds": round(outcome.seconds), "prompt_tokens": outcome.prompts,
            "idle_cores": outcome.idle, "invalid": outcome.invalid}  # fmt: skip
