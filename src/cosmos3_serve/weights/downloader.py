"""The `uvx` of the framework's workers: answers `hf download` from what the start proved, and fetches nothing.

Run as a program by a `uvx` that lies first on their PATH, with only the standard library; its place says where the Hub
cache is. Output as the tool's own with `--format=json`: one object with `path`, of the snapshot or of the one file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

REFUSED = 3
WITH_VALUE = frozenset({"--repo-type", "--revision", "--include", "--exclude", "--cache-dir", "--token", "--local-dir"})


def answer(cache: Path, arguments: Sequence[str]) -> Path:
    """Where the asked repository or file lies below `cache`.

    Raises:
        LookupError: it was not proved, or this is no such question; with the words for the log.
    """
    if "download" not in arguments:
        raise LookupError("only `hf download` is answered")
    rest = list(arguments[arguments.index("download") + 1 :])
    given: dict[str, str] = {}
    names: list[str] = []
    while rest:
        word = rest.pop(0)
        if word in WITH_VALUE:
            given[word] = rest.pop(0) if rest else ""
        elif not word.startswith("-"):
            names.append(word)
    if not names or given.get("--repo-type", "model") != "model" or len(names) > 2:
        raise LookupError("only one file or all files of a model are answered")
    revision = given.get("--revision", "main")
    folder = cache / f"models--{names[0].replace('/', '--')}"
    branch = folder / "refs" / revision
    commit = branch.read_text(encoding="utf-8").strip() if branch.is_file() else revision
    found = folder / "snapshots" / commit / (names[1] if len(names) > 1 else "")
    if ".." in found.parts or not found.exists():
        wanted = "/".join(names)
        raise LookupError(f"{wanted} at {revision} was not proved at the start, and nothing is fetched after it")
    return found


def main(argv: Sequence[str]) -> int:
    """`argv`: path of the `uvx`, then its arguments."""
    try:
        found = answer(Path(argv[0]).parents[1] / "hub", argv[1:])
    except LookupError as refused:
        print(f"cosmos3-serve: {refused.args[0]}", file=sys.stderr)
        return REFUSED
    print(json.dumps({"path": str(found)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
