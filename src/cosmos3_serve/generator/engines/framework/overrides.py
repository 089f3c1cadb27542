"""Overrides: from a resolved sample to the fields of upstream's `OmniSampleOverrides`.

Everything that upstream would read, fetch or unpickle by itself is refused here once more, although the contract and
staging have refused it long before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from cosmos3_serve.contract.modes import HINTS, ModelMode
from cosmos3_serve.errors import SampleCode, SampleError

# Upstream opens these in its worker: a pickle runs code, the others replace what was checked.
NEVER: Final = ("tensors_file", "pickle_file", "defaults_file", "prompt_path", "negative_prompt_file")
PATHS: Final = ("vision_path", "sound_path", "action_path")
# What a reasoner sample is made of; the rest of its resolved fields are upstream's inert marks, some out of range.
REASONER_FIELDS: Final = frozenset(
    {
        *("name", "output_dir", "model", "extra", "num_outputs", "seed", "model_mode", "prompt"),
        *("vision_path", "num_frames", "video_fps", "max_new_tokens", "do_sample"),
        *("temperature", "top_k", "top_p", "repetition_penalty", "presence_penalty"),
    }
)


def override_fields(args: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """Keyword arguments for `OmniSampleOverrides`: what was resolved, said explicitly; what is null, left out.

    Args:
        args: a resolved sample (72 fields) with staged inputs as absolute paths below the output root.
        output_dir: of the sample; always ours.

    Raises:
        SampleError: `input_invalid`: a field that upstream must not see, a path that is no staged file, or no name or
            seed (upstream would draw one and not say which).
    """
    for name in NEVER:
        if args.get(name) is not None:
            raise _refused(name, "is never given to the engine")
    for name in ("name", "seed"):
        if args.get(name) in (None, ""):
            raise _refused(name, "is missing")
    reasoner = args.get("model_mode") == ModelMode.REASONER and not any(args.get(hint) for hint in HINTS)
    fields: dict[str, Any] = {}
    for name, value in args.items():
        if value is None or name in NEVER or (reasoner and name not in REASONER_FIELDS):
            continue
        if name == "native_prompt_upsampling":
            if value:
                fields["prompt_upsampling"] = True
            continue
        if name in HINTS:
            value = {key: item for key, item in value.items() if item is not None}
            _check_path(f"{name}.control_path", value.get("control_path"))
        if name in PATHS:
            _check_path(name, value)
        fields[name] = value
    fields["output_dir"] = output_dir
    if not fields.get("model"):
        fields.pop("model", None)
    return fields


def _check_path(name: str, value: Any) -> None:
    """A staged file: absolute, local. Anything with a scheme would make upstream fetch it."""
    if value is None:
        return
    path = PurePosixPath(value) if isinstance(value, str) else None
    if path is None or "://" in str(value) or not path.is_absolute() or ".." in path.parts:
        raise _refused(name, "is no staged input")


def _refused(name: str, why: str) -> SampleError:
    return SampleError(SampleCode.INPUT_INVALID, f"{name} {why}")
