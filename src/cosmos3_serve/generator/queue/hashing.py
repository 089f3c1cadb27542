"""Hashing: is what an engine handed over really the sample's result, and what are its files. Blocking: from a thread.

Nothing here trusts an engine: a file must lie in the sample's own directory, be a regular file reached through no link,
hold at least a byte; the declared files must include those that the mode owes (docs/contract.md 4.2).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.jsontext import JsonProblem, check_json
from cosmos3_serve.contract.media import active_hints
from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.records import SampleOutputs
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.wire import REASONER_TEXT, artifact_problem, control_file, vision_file
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.storage.below import open_below

CHUNK = 1024 * 1024
# What upstream's largest action output needs, with room; a result is also held in the response.
MAX_DEPTH, MAX_NODES = 32, 2_000_000


def verify(
    output_root: Path, request_id: str, sample: ResolvedSample, seed: int, outputs: Mapping[str, Any]
) -> tuple[SampleOutputs, list[dict[str, Any]]]:
    """Check an engine's outputs and hash their files.

    Returns the outputs and the artifacts (path, bytes, sha256) in the order in which they were declared.

    Raises:
        SampleError: `output_invalid`, with what is wrong.
    """
    try:
        check_json(outputs, max_depth=MAX_DEPTH, max_nodes=MAX_NODES)
        result = SampleOutputs.model_validate(outputs)
    except JsonProblem as problem:
        raise _invalid(f"the result {problem.message}") from None
    except ValidationError as error:
        raise _invalid(f"the result is malformed at {_place(error)}") from None
    _check_args(result, sample, seed)
    paths = _declared(result, request_id, sample)
    return result, [_artifact(output_root, path) for path in paths]


def _check_args(result: SampleOutputs, sample: ResolvedSample, seed: int) -> None:
    """A result that is another sample's, or was made by other rules, must not pass for this one's."""
    args = result.args
    if result.status != "success":
        raise _invalid(f"the engine gave a result with status {result.status!r} and no reason")
    for name, wanted in (("name", sample.name), ("model_mode", str(sample.model_mode)), ("seed", seed)):
        if type(args.get(name)) is not type(wanted) or args[name] != wanted:
            raise _invalid(f"the result's {name} is not the sample's")
    frames = args.get("num_frames")
    if type(frames) is not int or frames < 1 or (frames == 1) != (sample.num_frames == 1):
        raise _invalid("the result's num_frames does not fit the sample")
    if active_hints(args) != frozenset(sample.hints):
        raise _invalid("the result's transfer hints are not the sample's")


def _declared(result: SampleOutputs, request_id: str, sample: ResolvedSample) -> list[str]:
    if not result.outputs:
        raise _invalid("the result has no outputs")
    paths: list[str] = []
    for output in result.outputs:
        if not output.files:
            raise _invalid("an output has no files")
        for path in output.files:
            problem = artifact_problem(path, request_id, sample.name)
            if problem or path in paths:
                raise _invalid(f"a declared file {problem or 'is declared twice'}")
            paths.append(path)
    frames = result.args["num_frames"]
    text = sample.model_mode is ModelMode.REASONER and not sample.hints
    owed = [REASONER_TEXT if text else vision_file(frames), *(control_file(hint, frames) for hint in sample.hints)]
    for name in owed:
        if f"{request_id}/{sample.name}/{name}" not in paths:
            raise _invalid(f"{name} is not among the declared files")
    return paths


def _artifact(output_root: Path, path: str) -> dict[str, Any]:
    """Size and hash of one file, opened part by part so that no link is followed on the way."""
    name = path.rsplit("/", 1)[-1]
    descriptor = open_below(output_root, path)
    if descriptor is None:
        raise _invalid(f"{name} is missing, or not a regular file")
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        digest, size = hashlib.sha256(), 0
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    if size < 1:
        raise _invalid(f"{name} is empty")
    return {"path": path, "bytes": size, "sha256": digest.hexdigest()}


def _place(error: ValidationError) -> str:
    return ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"]) or "its top"


def _invalid(message: str) -> SampleError:
    return SampleError(SampleCode.OUTPUT_INVALID, message)
