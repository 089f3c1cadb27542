"""Input files of a sample: which fields may name one, what else is refused, and how they are replaced once staged.

The rules are those of docs/contract.md 6; `detail` holds the texts that existing servers send. Two walks: server-owned
keys at any depth, then the input fields at their exact place and any other file-like key at any depth. Elements of a
list keep the place of the list. Nothing here reads storage; whoever stages checks roots and exactness (`storage/`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosmos3_serve.contract.findings import did_you_mean, path_text
from cosmos3_serve.contract.limits import MAX_GUESSES
from cosmos3_serve.contract.modes import HINTS, suffix_of
from cosmos3_serve.errors import FieldError, StorageAuthorizationError

Path = tuple[str | int, ...]

SERVER_OWNED: Final = "sample filesystem configuration is server-owned"
NEEDS_S3: Final = "sample inputs require an authorized s3:// object"
NOT_ONE_OBJECT: Final = "sample inputs must identify a single S3 object"
UNSUPPORTED: Final = "unsupported sample file input"

SERVER_OWNED_KEYS: Final = frozenset({"defaults_file", "output_dir"})
TEXT_FIELDS: Final = frozenset({("prompt_path",), ("negative_prompt_file",)})
INPUT_PLACES: Final = frozenset(
    {("vision_path",), ("sound_path",), ("action_path",), *TEXT_FIELDS, *((hint, "control_path") for hint in HINTS)}
)
_PLACE_NAMES: Final = ("vision_path", "sound_path", "action_path", "prompt_path", "negative_prompt_file")
# A file that came with the request itself and lies beside it; the service writes such names, no client does.
UPLOAD: Final = "upload://"
FILE_ENDINGS: Final = ("_path", "_file", "_dir", "_url")


@dataclass(frozen=True, slots=True)
class InputField:
    """One input of a sample: the path to its value in the sample, and the URI it names."""

    path: Path
    uri: str

    @property
    def field(self) -> str:
        return path_text(self.path)

    @property
    def upload(self) -> str | None:
        """The name of the file that came with the request; None for an object."""
        return self.uri.removeprefix(UPLOAD) if self.uri.startswith(UPLOAD) else None

    @property
    def is_text(self) -> bool:
        """Whether staging reads it as text into `prompt` or `negative_prompt` instead of keeping a file."""
        return self.path in TEXT_FIELDS


def _keys(sample: Mapping[str, Any]) -> Iterator[tuple[Path, tuple[str, ...], str, Any]]:
    """Every non-null dict entry at any depth: path, place (path without list indexes), key, value."""
    pending: list[tuple[Path, tuple[str, ...], Any]] = [((), (), sample)]
    while pending:
        path, place, item = pending.pop()
        if isinstance(item, list):
            pending.extend(((*path, index), place, child) for index, child in reversed(list(enumerate(item))))
        elif isinstance(item, Mapping):
            entries = [(key, child) for key, child in item.items() if child is not None]
            for key, child in entries:
                yield (*path, key), (*place, key), key, child
            pending.extend(((*path, key), (*place, key), child) for key, child in reversed(entries))


def server_owned_findings(sample: Mapping[str, Any]) -> list[FieldError]:
    return [
        FieldError(path_text(path), SERVER_OWNED, "remove it; the server decides where files go")
        for path, _, key, _ in _keys(sample)
        if key in SERVER_OWNED_KEYS
    ]


def check_server_owned(sample: Mapping[str, Any]) -> None:
    """Raises StorageAuthorizationError when a key that belongs to the server is set, at any depth."""
    found = server_owned_findings(sample)
    if found:
        raise StorageAuthorizationError(SERVER_OWNED, errors=found)


def scan_inputs(sample: Mapping[str, Any], uploads: Collection[str] = ()) -> tuple[list[InputField], list[FieldError]]:
    """Inputs and findings of the second walk; `uploads` are the names of the files that came with the request."""
    given = {UPLOAD + name for name in uploads}
    fields: list[InputField] = []
    found: list[FieldError] = []
    for path, place, key, value in _keys(sample):
        if place in INPUT_PLACES:
            problem = None if isinstance(value, str) and value in given else _input_problem(value)
            if problem:
                found.append(FieldError(path_text(path), problem, "name one object as s3://bucket/key"))
            else:
                fields.append(InputField(path, value))
        elif key.endswith(FILE_ENDINGS) and key not in SERVER_OWNED_KEYS:
            remedy = did_you_mean(key, _PLACE_NAMES) if len(found) < MAX_GUESSES else ""
            remedy = remedy or "remove it; no engine here reads it"
            found.append(FieldError(path_text(path), UNSUPPORTED, remedy))
    return fields, found


def input_fields(sample: Mapping[str, Any]) -> list[InputField]:
    """Every input of a sample, in the sample's own order. Both walks; nothing is fetched.

    Raises:
        StorageAuthorizationError: the detail is the first finding's text, `errors` are all of them.
    """
    check_server_owned(sample)
    fields, found = scan_inputs(sample)
    if found:
        raise StorageAuthorizationError(found[0].message, errors=found)
    return fields


def _input_problem(value: Any) -> str | None:
    if not isinstance(value, str) or not value.startswith("s3://"):
        return NEEDS_S3
    _, _, key = value[len("s3://") :].strip().partition("/")
    return NOT_ONE_OBJECT if not key.strip("/") or key.endswith("/") else None


def replace_inputs(sample: Mapping[str, Any], mapping: Mapping[Path, str]) -> dict[str, Any]:
    """A deep copy of the sample with the value at each path replaced.

    Raises:
        KeyError: a path that is not in the sample.
    """
    changed = copy.deepcopy(dict(sample))
    for path, value in mapping.items():
        holder: Any = changed
        for part in path[:-1]:
            holder = holder[part]
        if isinstance(holder, dict) and path[-1] not in holder:
            raise KeyError(path_text(path))
        holder[path[-1]] = value
    return changed


def fold_text_inputs(sample: Mapping[str, Any], texts: Mapping[Path, str]) -> dict[str, Any]:
    """A copy of the sample with staged text objects folded into `prompt` and `negative_prompt`.

    By the framework's rules (section 1c, 1h): a given `prompt` wins over `prompt_path`; the text is stripped; for a
    sample with hints a `.json` object is parsed and written again. The path fields go away.

    Args:
        texts: path of the field, as in `InputField.path`, to the object's text.

    Raises:
        ValueError: a `.json` object that is not JSON; the message names the field.
    """
    folded = copy.deepcopy(dict(sample))
    for field, target in (("prompt_path", "prompt"), ("negative_prompt_file", "negative_prompt")):
        uri = folded.pop(field, None)
        if uri is None or folded.get(target) is not None:
            continue
        text = texts[(field,)].strip()
        if suffix_of(uri) == ".json" and any(folded.get(hint) is not None for hint in HINTS):
            try:
                text = json.dumps(json.loads(text))
            except (ValueError, RecursionError):
                raise ValueError(f"{field} is not JSON") from None
        folded[target] = text
    return folded
