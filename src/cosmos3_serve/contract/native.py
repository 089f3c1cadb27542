"""Native outputs: what an engine leaves on disk for one sample, bound to the request that asked for it.

    <output root>/<request id>/<sample>/   sample_args.json      before the work, the resolved args
                                           sample_outputs.json   after it: args, status, content, files
                                           vision.*, control_*, reasoner_text.txt

Two layouts are known: the framework writes absolute server paths, our engine paths relative to the output root. Both
are read as the same thing; the absolute root itself proves nothing, so it is only cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.binding import Mismatch, result_files
from cosmos3_serve.contract.findings import shorten
from cosmos3_serve.contract.media import Requested, active_hints, requested, round_frames
from cosmos3_serve.contract.modes import ACTION_MODES
from cosmos3_serve.contract.records import SampleOutputs
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.contract.wire import SAMPLE_ARGS, SAMPLE_OUTPUTS, artifact_problem

# Undeclared files that an engine may leave beside its results; never opened, never published.
UNDECLARED = frozenset({"sample_data.safetensors", "sample_data.pickle"})
INPUTS = "inputs"  # conditioning media of the run, beside the samples or inside one

# Given fields that the resolved args must repeat as they were given. Paths are rewritten on the way and frames rounded;
# `prompt_path` replaces the prompt.
REPEATED = (
    *("prompt", "negative_prompt", "num_steps", "guidance", "guidance_interval", "shift", "sigma_max", "normalize_cfg"),
    *("resolution", "aspect_ratio", "fps", "image_size", "action_chunk_size", "view_point"),
    *("condition_frame_indexes_vision", "condition_video_keep", "max_new_tokens", "do_sample", "temperature", "top_k"),
    *("top_p", "control_guidance", "num_outputs"),
)
# Which code a broken rule of the response contract has, when it is found in native outputs.
RULE_CODES = {
    "status": "native_sample_failed",
    "mode": "native_wrong_mode",
    "seed": "native_wrong_seed",
    "frames": "native_wrong_frames",
    "hints": "native_wrong_hints",
    "files": "native_outputs_invalid",
    "paths": "native_path_escape",
    "primary": "native_file_missing",
}
PATH_KEYS = ("_path", "_file", "_dir", "_url")


class NativeProblem(Exception):
    """One sample's native outputs are not what was asked for; `code` is stable, `file` the file at fault."""

    def __init__(self, code: str, message: str, file: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.file = code, shorten(message), file


@dataclass(frozen=True, slots=True)
class NativeResult:
    """A bound sample.

    Attributes:
        outputs: SampleOutputs with files relative to the output root and no absolute server path.
        files: the declared files, relative to the output root.
    """

    name: str
    outputs: dict[str, Any]
    files: tuple[str, ...]

    @property
    def args(self) -> dict[str, Any]:
        found: dict[str, Any] = self.outputs["args"]
        return found


def bind_native(sample: Mapping[str, Any], request_id: str, args: object, outputs: object) -> NativeResult:
    """The result of one sample from its two native records.

    Args:
        sample: as it was asked for (from `prepare_request`).
        args, outputs: decoded JSON of `sample_args.json` and `sample_outputs.json`.

    Raises:
        NativeProblem: `native_sample_failed` where the engine itself says that there is no result; any other code where
            the records contradict the request or each other.
    """
    asked = requested(sample)
    native_args = _object(args, SAMPLE_ARGS)
    _bind_args(native_args, sample, asked, request_id, SAMPLE_ARGS)
    try:
        result = SampleOutputs.model_validate(outputs).model_dump(mode="json")
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_input=False)[0]["loc"])) or "its top"
        text = f"it is not a SampleOutputs object: {where}"
        raise NativeProblem("native_outputs_invalid", text, SAMPLE_OUTPUTS) from None
    _bind_args(result["args"], sample, asked, request_id, SAMPLE_OUTPUTS)
    for field in ("seed", "model_mode", "num_frames", "prompt", "output_dir"):
        if native_args.get(field) != result["args"].get(field):
            raise NativeProblem("native_records_disagree", f"{field} differs from {SAMPLE_ARGS}", SAMPLE_OUTPUTS)
    for output in result["outputs"]:
        output["files"] = [_relative(path, request_id, asked.name, result["args"]) for path in output["files"]]
    try:
        files = result_files(result, asked, request_id)
    except Mismatch as mismatch:
        raise NativeProblem(RULE_CODES[mismatch.rule], mismatch.message, SAMPLE_OUTPUTS) from None
    result["args"] = _shown(result["args"], sample, f"{request_id}/{asked.name}")
    return NativeResult(asked.name, result | {"message": None, "stack_trace": None}, tuple(files))


def _object(value: object, file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NativeProblem("native_json_invalid", "it is not a JSON object", file)
    return value


def _bind_args(
    args: Mapping[str, Any], sample: Mapping[str, Any], asked: Requested, request_id: str, file: str
) -> None:
    if args.get("name") != asked.name:
        raise NativeProblem("native_wrong_name", f"it is of another sample than {asked.name!r}", file)
    place = args.get("output_dir")
    if not isinstance(place, str) or PurePosixPath(place).parts[-2:] != (request_id, asked.name):
        raise NativeProblem("native_foreign_request", f"it was not made for request {request_id}", file)
    seed, frames = args.get("seed"), args.get("num_frames")
    if asked.seed is None:
        if seed is not None and type(seed) is not int:
            raise NativeProblem("native_wrong_seed", "the seed is not a whole number", file)
    elif type(seed) is not int or seed != asked.seed:
        raise NativeProblem("native_wrong_seed", f"the seed is {shorten(repr(seed), 40)}, not {asked.seed!r}", file)
    if args.get("model_mode") != asked.mode:
        raise NativeProblem("native_wrong_mode", f"the mode is not {asked.mode}", file)
    if active_hints(args) != asked.hints:
        raise NativeProblem("native_wrong_hints", "the active transfer hints differ from the requested ones", file)
    wanted = sample.get("num_frames")
    exact = isinstance(wanted, int) and not asked.hints and asked.mode not in ACTION_MODES and not asked.is_text
    if type(frames) is not int or frames < 1 or (exact and frames not in (wanted, round_frames(wanted))):  # type: ignore[arg-type]
        raise NativeProblem("native_wrong_frames", f"num_frames is {shorten(repr(frames), 40)}, not {wanted!r}", file)
    if different := _different(sample, args):
        raise NativeProblem("native_wrong_args", f"{', '.join(different)}: not as requested", file)


def _different(sample: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    given = SampleOverrides.model_validate(sample).model_dump(mode="json", exclude_none=True)
    if given.get("prompt_upsampling"):
        given.pop("prompt", None)
    return [field for field in REPEATED if field in given and args.get(field) != given[field]]


def _relative(path: str, request_id: str, name: str, args: Mapping[str, Any]) -> str:
    """A declared path relative to the output root; one of another place is refused, whichever way it is written."""
    home = f"{request_id}/{name}"
    if path.startswith("/"):
        place = str(args["output_dir"]).rstrip("/")
        if not path.startswith(place + "/"):
            raise NativeProblem("native_path_escape", "a file lies outside its sample's directory", SAMPLE_OUTPUTS)
        path = f"{home}/{path[len(place) + 1 :]}"
    if problem := artifact_problem(path, request_id, name):
        raise NativeProblem("native_path_escape", f"a file path {problem}", SAMPLE_OUTPUTS)
    return path


def _shown(args: Mapping[str, Any], sample: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """The args as they may be published: inputs by the URI that was asked for, nothing absolute of the server."""

    def shown(key: str, value: Any, given: Any) -> Any:
        if isinstance(value, dict):
            inner = given if isinstance(given, Mapping) else {}
            return {name: shown(name, item, inner.get(name)) for name, item in value.items()}
        if isinstance(value, str) and key.endswith(PATH_KEYS):
            return given if isinstance(given, str) else PurePosixPath(value).name if value.startswith("/") else value
        return value

    return {key: shown(key, value, sample.get(key)) for key, value in args.items()} | {"output_dir": directory}
