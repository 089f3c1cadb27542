"""A Dockerfile as its instructions, and a build context as `.dockerignore` leaves it: as much as our own files need."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "containers").glob("*.Dockerfile"))


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """Each instruction on one line, comments dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in whole.splitlines() if line.strip()]


def last_stage(found: list[Instruction]) -> list[Instruction]:
    return found[max(i for i, one in enumerate(found) if one.word == "FROM") :]


def words(found: list[Instruction], name: str) -> list[str]:
    """The exec form that the last ENTRYPOINT or CMD of this name gives."""
    return list(json.loads([one.rest for one in found if one.word == name][-1]))


def variables(found: list[Instruction]) -> dict[str, str]:
    """What ENV sets, quotes removed."""
    return {
        name: value.strip("'\"")
        for one in found
        if one.word == "ENV"
        for name, value in re.findall(r"([A-Z0-9_]+)=('[^']*'|\"[^\"]*\"|\S+)", one.rest)
    }


def health(found: list[Instruction]) -> tuple[dict[str, str], list[str]]:
    """Options and exec form of HEALTHCHECK; no words for NONE."""
    (one,) = [one for one in found if one.word == "HEALTHCHECK"]
    options, _, command = one.rest.partition("CMD ")
    return dict(re.findall(r"--([a-z-]+)=(\S+)", options)), json.loads(command) if command else []


def copied_from_context(found: list[Instruction]) -> list[str]:
    """Sources of every COPY and ADD that reads the build context."""
    mine = [one for one in found if one.word in ("COPY", "ADD") and "--from=" not in one.rest]
    return [source for one in mine for source in one.rest.split()[:-1]]


def matcher(pattern: str) -> re.Pattern[str]:
    """One line of .dockerignore as Docker reads it: `**` any folders, `*` within a name, a folder with all below it."""
    made = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/")):
        made += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part) or re.sub(
            r"\\\[(.*?)\\\]", r"[\1]", re.escape(part)
        )
    return re.compile(made + r"(?:/.*)?")


def context(root: Path) -> list[str]:
    """What a build sees of a folder, with the project's .dockerignore; the last line that matches decides."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line.strip() and not line.startswith("#")]
    compiled = [(line.startswith("!"), matcher(line.removeprefix("!"))) for line in rules]
    kept = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        decided = [keeps for keeps, rule in compiled if rule.fullmatch(name)]
        if path.is_file() and (not decided or decided[-1]):
            kept.append(name)
    return kept
