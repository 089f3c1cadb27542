"""A Dockerfile as its instructions, and a build context as `.dockerignore` leaves it: as much as our own files need."""

from __future__ import annotations

import json
import os
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


def context(root: Path, rules: list[str] | None = None) -> list[str]:
    """What a build sees of a folder, with the project's .dockerignore; the last line that matches decides.

    A left-out folder is entered only where a later line may bring back something in it, as Docker does: what developers
    keep beside the sources (environments of a hundred thousand files) is not walked.
    """
    lines = (ROOT / ".dockerignore").read_text().splitlines() if rules is None else rules
    given = [line for line in lines if line.strip() and not line.startswith("#")]
    compiled = [(line.startswith("!"), matcher(line.removeprefix("!")), line.removeprefix("!")) for line in given]

    def decided(name: str) -> tuple[int, bool]:
        """The number of the last line that matches (-1: none), and whether it keeps."""
        found = [(n, keeps) for n, (keeps, rule, _) in enumerate(compiled) if rule.fullmatch(name)]
        return found[-1] if found else (-1, True)

    def entered(name: str) -> bool:
        number, keeps = decided(name)
        return keeps or any(keeps and leads_into(text, name) for keeps, _, text in compiled[number + 1 :])

    kept = []
    for folder, folders, files in os.walk(root):
        names = {name: (Path(folder) / name).relative_to(root).as_posix() for name in [*folders, *files]}
        folders[:] = [name for name in folders if entered(names[name])]
        kept += [names[name] for name in files if (Path(folder) / name).is_file() and decided(names[name])[1]]
    return sorted(kept)


def leads_into(pattern: str, folder: str) -> bool:
    """Whether a line of .dockerignore may match something below this folder."""
    parts, steps = pattern.strip("/").split("/"), folder.split("/")
    if "**" in pattern:
        return True
    return len(parts) > len(steps) and all(
        matcher(part).fullmatch(step) for part, step in zip(parts, steps, strict=False)
    )
