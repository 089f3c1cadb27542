"""Rules that hold on every engine: what upstream would refuse at build time or, worse, only after the work.

Each rule yields findings with the field, what is wrong and what to do. Templates (`duration_template` and its kin)
reach `str.format` in the engines. A free format string may read attributes of its arguments or ask for gigabytes of
padding, so only plain named fields with a short numeric format pass. Placement (how many GPUs one service may span) is
checked at start and before a manifest is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter
from typing import Final

from cosmos3_serve.contract.budget import budget_findings
from cosmos3_serve.contract.defaults import TRANSFER_ONLY
from cosmos3_serve.contract.modes import (
    ACTION_MODES,
    COMPUTED_HINTS,
    CONTROL_IMAGE_SUFFIXES,
    CONTROL_VIDEO_SUFFIXES,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    ModelMode,
    control_kind,
    implicit_mode,
    suffix_of,
    vision_kind,
)
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.contract.wire import is_safe_name
from cosmos3_serve.errors import FieldError, UsageError
from cosmos3_serve.settings import GeneratorSettings

NEVER_GIVEN = {
    "tensors_file": "describe the sample by prompt and vision_path",
    "pickle_file": "describe the sample by prompt and vision_path",
    "defaults_file": "write the values into the sample",
}
NO_HINT = "transfer inference requires at least one control hint (edge, blur, depth, seg, wsm)"
SAFE_NAME_REMEDY = "use 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit"


def static_findings(sample: SampleOverrides) -> Iterator[FieldError]:
    """Findings that need no engine and no defaults."""
    if sample.name is None:
        yield FieldError("name", "is missing", "give each sample a name of its own")
    elif not is_safe_name(sample.name):
        yield FieldError("name", "is not a safe name", SAFE_NAME_REMEDY)
    if sample.num_outputs is not None and sample.num_outputs > 1:
        # Upstream does the work and then fails the whole coalesced batch.
        yield FieldError(
            "num_outputs",
            f"is {sample.num_outputs}; one sample makes one output",
            "name several samples with seeds of their own",
        )
    for field, remedy in NEVER_GIVEN.items():
        if getattr(sample, field) is not None:
            yield FieldError(field, "is never accepted", remedy)
    yield from template_findings(sample.given())
    yield from _vision(sample)
    yield from _hints(sample)


def _vision(sample: SampleOverrides) -> Iterator[FieldError]:
    suffix = None if sample.vision_path is None else suffix_of(sample.vision_path)
    if suffix is not None and vision_kind(suffix) is None:
        known = ", ".join(sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES))
        yield FieldError("vision_path", f"has the unknown extension {suffix!r}", f"use one of {known}")
    elif sample.model_mode is None and implicit_mode(suffix, sample.num_frames) == "video2image":
        # The framework has no such mode and would fail only when the sample runs.
        yield FieldError(
            "num_frames",
            "one frame from a video (video2image) is no mode of any engine",
            "leave num_frames out for video2video, or give an image",
        )
    if suffix == ".webp" and sample.hints:
        yield FieldError("vision_path", "transfer does not read .webp", "use .png or .jpg")


def _hints(sample: SampleOverrides) -> Iterator[FieldError]:
    hints = sample.hints
    if not hints:
        # The framework refuses these fields without a hint when it parses a sample.
        given = [field for field in TRANSFER_ONLY if getattr(sample, field) is not None]
        if sample.control_guidance not in (None, 1.0):
            given.append("control_guidance")
        for field in given:
            yield FieldError(field, NO_HINT, 'add a hint such as "edge": {"control_path": "s3://…"}, or remove it')
    for name, hint in hints.items():
        if hint.control_path is None:
            if name not in COMPUTED_HINTS:
                yield FieldError(
                    f"{name}.control_path", f"is missing; {name} is never computed", "give the control media"
                )
            elif sample.vision_path is None:
                yield FieldError(
                    f"{name}.control_path", "is missing and there is no vision_path", "give one of the two"
                )
        elif control_kind(suffix_of(hint.control_path)) is None:
            known = ", ".join(sorted(CONTROL_IMAGE_SUFFIXES | CONTROL_VIDEO_SUFFIXES))
            yield FieldError(f"{name}.control_path", "has an unknown extension", f"use one of {known}")


def resolved_findings(sample: SampleOverrides, resolved: ResolvedSample) -> Iterator[FieldError]:
    """Findings that need the defaults filled in."""
    if resolved.model_mode is not ModelMode.REASONER and resolved.resolution == "1080" and resolved.num_frames > 1:
        yield FieldError(
            "resolution", "1080 makes images only (num_frames 1)", "use 768 or below, or num_frames 1"
        )  # as the framework does
    yield from budget_findings(resolved)
    if resolved.hints:
        yield from _transfer(resolved)
    if resolved.model_mode in ACTION_MODES:
        yield from _action(sample)
    if resolved.model_mode is ModelMode.AUDIO_IMAGE2VIDEO and resolved.sound_path is None:
        yield FieldError("sound_path", "is missing; audio_image2video needs it", "give the sound as s3://…")
    if resolved.modality == "reasoner" and not resolved.prompt.strip() and sample.prompt_path is None:
        yield FieldError("prompt", "is blank; the reasoner needs a question", "write the question")


def _transfer(resolved: ResolvedSample) -> Iterator[FieldError]:
    for name, hint in resolved.hints.items():
        media = hint.control_path or resolved.vision_path
        kind = control_kind(suffix_of(media)) if media else None
        field = f"{name}.control_path" if hint.control_path else "vision_path"
        # Upstream names the file by num_frames and writes it by the real count: an assertion after the work.
        if kind == "image" and resolved.num_frames != 1:
            yield FieldError("num_frames", f"is {resolved.num_frames}, but {field} is an image", "set num_frames to 1")
        elif kind == "video" and resolved.num_frames == 1:
            yield FieldError("num_frames", f"is 1, but {field} is a video", "leave num_frames out, or give an image")
    chunk, kept = resolved.num_video_frames_per_chunk, resolved.num_conditional_frames
    if chunk is not None and kept is not None and kept >= chunk:
        # The number of chunks divides by their difference.
        yield FieldError(
            "num_conditional_frames",
            f"is {kept}, which leaves no new frame in a chunk of {chunk}",
            "set it below num_video_frames_per_chunk",
        )
    if resolved.num_first_chunk_conditional_frames and resolved.vision_path is None:
        yield FieldError("num_first_chunk_conditional_frames", "needs a vision_path", "give one, or set it to 0")


def _action(sample: SampleOverrides) -> Iterator[FieldError]:
    # Upstream has bare asserts here, and ValueErrors only when the data are prepared.
    if sample.vision_path is None:
        yield FieldError("vision_path", "is missing; action modes start from an image or a video", "give it as s3://…")
    if sample.model_mode is ModelMode.FORWARD_DYNAMICS and sample.action_path is None:
        yield FieldError("action_path", "is missing; forward_dynamics needs it", "give a JSON list of action vectors")
    if sample.num_frames == 1:
        yield FieldError("num_frames", "is 1, but action modes make a video", "leave it out")


DURATION_FIELDS: Final = ("duration", "fps")
RESOLUTION_FIELDS: Final = ("height", "width")

TEMPLATE_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "duration_template": DURATION_FIELDS,
    "inverse_duration_template": DURATION_FIELDS,
    "resolution_template": RESOLUTION_FIELDS,
    "inverse_resolution_template": RESOLUTION_FIELDS,
}

MAX_TEMPLATE_VALUES: Final = 32
_SPEC = re.compile(r"[<>^]?0?[0-9]{0,2}(\.[0-9]{1,2})?[dfg]?")


def template_problem(template: str, allowed: tuple[str, ...]) -> str | None:
    """Why a template may not be formatted, or None when it may."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"is not a format string: {error}"
    values = [(name, spec or "", conversion) for _, name, spec, conversion in parts if name is not None]
    if len(values) > MAX_TEMPLATE_VALUES:
        return f"uses more than {MAX_TEMPLATE_VALUES} values"
    for name, spec, conversion in values:
        if name not in allowed:
            return f"uses a field other than {' and '.join('{' + field + '}' for field in allowed)}"
        if conversion:
            return "uses a conversion"
        if not _SPEC.fullmatch(spec):
            return "uses a format other than width, precision and d, f or g"
    try:
        template.format(duration=1.5, fps=24, height=256, width=320)
    except (ValueError, TypeError) as error:
        return f"cannot be filled in: {error}"
    return None


def template_findings(given: dict[str, object]) -> list[FieldError]:
    """Findings for the template fields among the given ones."""
    found = []
    for field, allowed in TEMPLATE_FIELDS.items():
        template = given.get(field)
        problem = template_problem(template, allowed) if isinstance(template, str) else None
        if problem:
            example = "{duration:.1f}" if allowed is DURATION_FIELDS else "{height}"
            names = " and ".join("{" + name + "}" for name in allowed)
            found.append(FieldError(field, problem, f"use only {names}, such as {example}"))
    return found


SHARDED: Final = (
    "with several data-parallel groups upstream answers only the share of rank 0, and every larger batch fails"
)


def check_placement(settings: GeneratorSettings) -> None:
    """
    Raises:
        UsageError: the diffusers engine over several GPUs; code `parallelism`: the framework's `throughput` over
            several.
    """
    if settings.world_size == 1:
        return
    if settings.engine == "diffusers":
        raise UsageError(
            f"the diffusers engine runs on one device, not on {settings.world_size}",
            remedy="leave --world-size at 1 and run one service per GPU",
        )
    if settings.engine == "framework" and settings.parallelism_preset == "throughput":
        raise UsageError(
            f"the throughput preset cannot serve over {settings.world_size} GPUs: {SHARDED}",
            code="parallelism",
            remedy="--parallelism-preset latency puts all GPUs on each sample; for more samples at once run one "
            "service per GPU, each with --world-size 1",
        )
