"""Tables generated from the code: settings and errors, as Markdown for the documentation and as data for `--json`."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from cosmos3_serve import errors
from cosmos3_serve.cli.codes import code_rows, over_http
from cosmos3_serve.cli.options import bounds_text, default_text
from cosmos3_serve.errors import Cosmos3Error, ExitCode, SampleCode
from cosmos3_serve.settings import (
    ClientSettings,
    Engine,
    GeneratorSettings,
    ReasonerBatchSettings,
    ReasonerSettings,
    Settings,
)
from cosmos3_serve.weights.assets import assets_of

SETTINGS: dict[str, type[Settings]] = {
    "ray-serve": GeneratorSettings,
    "ray-batch": ClientSettings,
    "reasoner serve": ReasonerSettings,
    "reasoner batch": ReasonerBatchSettings,
}
EXIT_CODES: dict[int, str] = {
    ExitCode.DONE: "done",
    ExitCode.INPUT: "the input is wrong: a flag, a value, a batch; the caller can fix it",
    ExitCode.REFUSED: "refused by a check: access, guardrails, readiness, queue",
    ExitCode.SERVICE: "the service, the storage or this program failed",
    ExitCode.INCOMPLETE: "incomplete, resumable: run again with `--resume`",
    ExitCode.INTERRUPTED: "interrupted, resumable",
}
SETTINGS_CODE = ("flag", "environment", "default")  # columns shown as code
ERRORS_CODE = ("code", "class")


def settings_rows(model: type[Settings]) -> list[dict[str, str]]:
    return [
        {
            "flag": _flag(model, name),
            "environment": model.env_name(name) or "",
            "type": type_text(field.annotation),
            "default": default_text(field),
            "limits": bounds_text(field),
            "meaning": str(field.description),
        }
        for name, field in model.model_fields.items()
    ]


def _flag(model: type[Settings], name: str) -> str:
    flag = model.flag_name(name)
    if model.model_fields[name].annotation is bool:
        return f"{flag} / --no-{flag.removeprefix('--')}"
    return flag


def type_text(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(type_text(arg) for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is tuple:
        return "text, repeatable"
    if get_origin(annotation) is Literal:
        return ", ".join(str(value) for value in get_args(annotation))
    names = {
        "str": "text",
        "int": "integer",
        "float": "number",
        "bool": "on, off",
        "Path": "path",
        "ByteSize": "bytes",
        "WorkerRange": "number or range",
    }
    return names.get(annotation.__name__, str(annotation.__name__))


def error_rows() -> list[dict[str, str]]:
    """Every failure class that has a code of its own, in the order of the map."""
    return [
        {
            "code": kind.code,
            "HTTP": str(kind.status) if over_http(kind) else "",
            "exit": str(kind.exit_code),
            "class": kind.__name__,
            "meaning": kind.title,
        }
        for kind in _tree(Cosmos3Error)
        if "code" in vars(kind)
    ]


def sample_rows() -> list[dict[str, str]]:
    return [{"code": code.value, "retryable": "yes" if code.retryable else "no"} for code in SampleCode]


def _tree(root: type[Cosmos3Error]) -> Iterator[type[Cosmos3Error]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _tree(kind)


def markdown(rows: list[dict[str, str]], code_columns: tuple[str, ...]) -> str:
    """A GitHub table; cells of `code_columns` in backticks."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = [f"`{row[c]}`" if c in code_columns and row[c] else _plain(row[c]) for c in head]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def settings_markdown(model: type[Settings]) -> str:
    return markdown(settings_rows(model), SETTINGS_CODE)


def errors_markdown() -> str:
    return markdown(error_rows(), ERRORS_CODE)


def codes_markdown() -> str:
    return markdown(code_rows(), ERRORS_CODE)


def exit_codes_markdown() -> str:
    return markdown([{"code": str(code), "meaning": text} for code, text in EXIT_CODES.items()], ())


def assets_markdown() -> str:
    """Every asset of a guarded start by repository: which engines load it, and at which revision."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for engine in get_args(Engine):
        for asset in assets_of(engine, guardrails=True):
            empty = {
                "what": asset.purpose,
                "repository": asset.repo,
                "revision": asset.revision or "yours: `--guardrail-revision`, a commit that you reviewed",
                "gated": "yes" if asset.gated else "no",
                "loaded by": "",
            }
            row = rows.setdefault((asset.repo, asset.purpose), empty)
            row["loaded by"] = ", ".join(filter(None, [row["loaded by"], engine]))
    return markdown(list(rows.values()), ("repository",))


def wire_names_markdown() -> str:
    from cosmos3_serve.contract import wire

    rows = (
        ("schema of request and response", wire.BATCH_SCHEMA),
        ("schema of `provenance.json`", wire.PROVENANCE_SCHEMA),
        ("framework revision, the client's default", wire.FRAMEWORK_REVISION),
        ("backend of the framework engine", wire.FRAMEWORK_BACKEND),
        ("revision of the diffusers engine", wire.DIFFUSERS_REVISION),
        ("backend of the diffusers engine", wire.DIFFUSERS_BACKEND),
        ("model", wire.MODEL_NAME),
        ("Serve application", wire.APP_NAME),
        ("primary files", f"{wire.VISION_IMAGE}, {wire.VISION_VIDEO}, {wire.REASONER_TEXT}"),
    )
    return markdown([{"what": what, "value": value} for what, value in rows], ("value",))


def wire_limits_markdown() -> str:
    from cosmos3_serve.contract import limits

    rows = (
        ("prompt, bytes of UTF-8", limits.MAX_PROMPT_BYTES),
        ("template, characters", limits.MAX_TEMPLATE_CHARS),
        ("URI, characters", limits.MAX_URI_CHARS),
        ("frames", limits.MAX_NUM_FRAMES),
        ("denoising steps", limits.MAX_NUM_STEPS),
        ("frames a second", limits.MAX_FPS),
        ("action chunk", limits.MAX_ACTION_CHUNK),
        ("new tokens", limits.MAX_NEW_TOKENS),
        ("condition indexes", limits.MAX_CONDITION_INDEXES),
        ("seed", f"{limits.MIN_SEED} to {limits.MAX_SEED}"),
        ("depth of a sample", limits.MAX_SAMPLE_DEPTH),
        ("values in a sample", limits.MAX_SAMPLE_NODES),
        ("findings in one answer", limits.MAX_FINDINGS),
    )
    return markdown([{"what": what, "at most": str(most)} for what, most in rows], ())


def samples_markdown() -> str:
    return markdown(sample_rows(), ("code",))


def fields_markdown() -> str:
    """Every field of the reasoner's endpoints, and who acts on it there."""
    from cosmos3_serve.reasoner.gateway.endpoint import ENDPOINTS
    from cosmos3_serve.reasoner.gateway.fields import shown_value

    rows: dict[str, dict[str, str]] = {}
    notes: dict[str, dict[str, list[str]]] = {}
    for endpoint in ENDPOINTS:
        column = endpoint.path.removeprefix("/v1/").replace("chat/completions", "chat")
        for name, field in endpoint.fields.items():
            row = rows.setdefault(name, {"field": name, "chat": "", "completions": "", "responses": ""})
            row[column] = field.role.value
            taken = f"only {' or '.join(map(shown_value, field.values))}" if field.values else ""
            note = "; ".join(filter(None, (taken, field.note)))
            notes.setdefault(name, {}).setdefault(note, []).append(column)
    for name, row in rows.items():
        said = [(note, columns) for note, columns in notes[name].items() if note]
        everywhere = len(notes[name]) == 1
        row["meaning"] = "; ".join(n if everywhere else f"{', '.join(columns)}: {n}" for n, columns in said)
    return markdown([rows[name] for name in sorted(rows)], ("field",))


def openai_fields_markdown() -> str:
    """Every field of OpenAI's image and video requests that the generator knows, and what it does with it."""
    from cosmos3_serve.contract import openai_fields as known

    own = {
        "model": "the loaded model, or left out",
        "size": "`WIDTHxHEIGHT` of a tier; `auto` as left out",
        "width": "with `height`: as `size`",
        "height": "with `width`: as `size`",
        "seconds": "times `fps` (24 where it is left out): `num_frames`; not beside `num_frames`",
        "response_format": "`b64_json` (default) or `url`",
        "extra_params": "an object, in forms as JSON text; its members are "
        + ", ".join(f"`{n}`" for n in known.EXTRA_PARAMS),
        "input_reference": 'a file, `{"image_url": …}`, `{"video_url": …}`, a `data:` URL or an `s3://` URI',
        "image_reference": '`{"image_url": …}`, a `data:` URL or an `s3://` URI',
        "video_reference": '`{"video_url": …}`, a `data:` URL or an `s3://` URI',
        "reference_url": "a `data:` URL or an `s3://` URI",
    }
    rows = []
    for name in sorted({*known.IMAGE_FIELDS, *known.VIDEO_FIELDS, *known.REFUSED}):
        target = known.VIDEO_SAMPLE_FIELDS.get(name)
        neutral = [str(value).lower() for value in known.NEUTRAL.get(name, ()) if not isinstance(value, str)]
        neutral += [value for value in known.NEUTRAL.get(name, ()) if isinstance(value, str) and value not in neutral]
        refused = f"only {' or '.join(f'`{value}`' for value in neutral)}" if neutral else "refused"
        rows.append(
            {
                "field": name,
                "images": "acted on" if name in known.IMAGE_FIELDS else refused,
                "videos": "acted on" if name in known.VIDEO_FIELDS else refused,
                "meaning": own.get(name) or (f"`{target}` of the sample" if target else known.REFUSED.get(name, "")),
            }
        )
    return markdown(rows, ("field",))


def openai_sizes_markdown() -> str:
    """Every size, by tier and aspect ratio."""
    from cosmos3_serve.contract.media import SIZES
    from cosmos3_serve.contract.openai_request import ACTION_TIER

    rows = [
        {
            "resolution": tier,
            **{ratio.replace(",", ":"): f"{width}x{height}" for ratio, (width, height) in ratios.items()},
        }
        for tier, ratios in SIZES.items()
        if tier != ACTION_TIER
    ]
    return markdown(rows, ("resolution",))


def replica_figures_markdown() -> str:
    from cosmos3_serve.reasoner.gateway.replica_figures import FAMILIES

    rows = [{"name": name, "type": kind, "meaning": text} for name, (kind, text) in FAMILIES.items()]
    return markdown(rows, ("name",))
