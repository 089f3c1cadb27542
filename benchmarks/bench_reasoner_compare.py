"""This service beside NVIDIA Dynamo 1.6.1 in one run: two CPU replicas of vLLM each, both routing profiles.

The tiny checkpoint with random weights: what the figures say is how often work is repeated and what the way to a
replica costs, not how fast the model is. Dynamo takes part where COSMOS3_DYNAMO_PYTHON names a Python that has it with
vLLM (benchmarks/README.md says how). A run that did not do what its figures would claim has none.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure import dynamo_fleet
from measure.compared import sections
from measure.dynamo_fleet import DynamoFleet
from measure.fleet import fleet
from measure.result import RESULTS, InvalidRun, Section, demand, quiet, report
from measure.side_by_side import PROFILES, REPLICAS, Contender, Plan, side_by_side

from cosmos3_serve.bench import report as records
from cosmos3_serve.bench.reasoner import Known
from cosmos3_serve.bench.videos import Recipe, make_videos
from cosmos3_serve.errors import Cosmos3Error, StartRefused
from cosmos3_serve.reasoner.engine.interpreter import find_interpreter
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.tiny import ensure_tiny

ABOUT = (
    "Both systems are real: Ray Serve with our gateway, and Dynamo's Rust frontend with its own workers. Ratios "
    "between columns are the result; the seconds are those of this machine."
)
OURS, DYNAMO = "cosmos3-serve", "Dynamo 1.6.1"


def options() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--short", action="store_true", help="one repeat of 4 videos with 3 questions")
    found.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    found.add_argument("--cache", type=Path, help="where the tiny checkpoint and clips are kept between runs")
    found.add_argument("--keep", type=Path, help="also keep every request's record, a directory for each run")
    found.add_argument(
        "--sizes", nargs="+", default=["640x360", "320x180", "224x128"], help="the first that fits in time"
    )
    found.add_argument("--budget-s", type=float, default=3600.0, help="for the repeats; smaller clips where too short")
    found.add_argument("--repeats", type=int, default=3)
    found.add_argument("--dynamo-frames", type=int, default=-1, help="frames of a clip that Dynamo's workers take")
    found.add_argument("--without-dynamo", action="store_true", help="ours alone, and the result says so")
    found.add_argument("--max-load", type=float, default=3.0, help="load average a core above which nothing is run")
    return found


def main(argv: list[str] | None = None) -> int:
    chosen = options().parse_args(argv)
    try:
        version = find_interpreter(ReasonerSettings.load().vllm_python).version
    except StartRefused as refused:
        print(f"SKIPPED, nothing measured: {refused.detail}; {refused.remedy}", file=sys.stderr)
        return 0
    ours = f"vLLM {'.'.join(map(str, version))}"

    def measure(base: Path) -> list[Section]:
        quiet(chosen.max_load)
        return compare(chosen, chosen.cache or base, base / "run", ours)

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        name = f"reasoner-compare{'-short' if chosen.short else ''}"
        return report(name, lambda: measure(Path(folder)), chosen.out, about=ABOUT)


def compare(chosen: argparse.Namespace, cache: Path, base: Path, ours: str) -> list[Section]:
    sizes = [cache / f"clips-{size}" for size in chosen.sizes]
    plan = Plan(sizes, 4, 3, 4, repeats=1) if chosen.short else Plan(sizes, repeats=chosen.repeats)
    plan = Plan(**{**vars(plan), "budget_s": chosen.budget_s})
    for size, folder in zip(chosen.sizes, sizes, strict=True):
        width, height = map(int, size.split("x"))
        make_videos(folder, plan.clips, Recipe(width=width, height=height), workers=1)
    base.mkdir(parents=True)
    # Clips are linked into the parts, which therefore lie beside them.
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="parts-", dir=cache) as parts:
        dynamo = None if chosen.without_dynamo else dynamo_fleet.find()
        why = "" if dynamo else "not asked for" if chosen.without_dynamo else f"{dynamo_fleet.PYTHON_ENV} names none"
        services = {profile: fleet(cache, profile).launch() for profile in PROFILES}
        for service in services.values():
            stack.callback(service.stop)
        theirs = None
        if dynamo:
            theirs = DynamoFleet(dynamo[0], base / "dynamo", ensure_tiny(cache), workers=REPLICAS,
                                 frames=chosen.dynamo_frames)  # fmt: skip
            stack.enter_context(theirs)
            theirs.launch()
            say("everything was launched")
            try:
                theirs.wait()
                say("Dynamo is ready")
            except InvalidRun as failed:
                say(str(failed))
                theirs.stop()
                theirs, why = None, str(failed)
        for service in services.values():
            service.wait_ready()
        say("this service is ready")
        contenders = [
            Contender(OURS, profile, service.url, service.token, Known(server=f"{OURS} ({ours})", weights="random"),
                      lambda service=service: [service.pid])
            for profile, service in services.items()
        ]  # fmt: skip
        if theirs is not None and dynamo is not None:
            known = Known(server=f"Dynamo {dynamo[1]}", weights="random", worker_ids=True)
            contenders += [
                Contender(DYNAMO, profile, theirs.url(profile), "", known, lambda: theirs.pids) for profile in PROFILES
            ]
        outcome = asyncio.run(side_by_side(contenders, plan, Path(parts), say))
        keep(outcome.runs, chosen.keep)
        for label, findings in outcome.invalid.items():
            say(f"INVALID, {label}: {'; '.join(findings)}")
        demand(any(label not in outcome.invalid for label in outcome.runs), "no run is valid")
        versions = f"{OURS} with {ours}; " + (
            f"Dynamo {dynamo[1]}" if theirs else f"**Dynamo was not measured**: {why}"
        )
        _, settings = dynamo_fleet.engine(ensure_tiny(cache), REPLICAS)  # both systems' engines get them
        return sections(outcome, plan, versions, settings.get("OMP_NUM_THREADS", ""))


def keep(runs: dict[str, object], folder: Path | None) -> None:
    """Every request's record, of invalid runs too."""
    for label, run in runs.items() if folder else ():
        try:
            records.write(run, folder / label.replace(", ", "-").replace(" ", "-").lower())  # type: ignore[arg-type]
        except Cosmos3Error as refused:
            say(f"{label}: {refused}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
