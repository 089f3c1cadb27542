"""Which settings an engine or a mode uses. One that would be accepted and ignored is refused by name.

A value counts as given when it differs from the default: what equals the default changes nothing, wherever it was
written (an image's environment, a manifest, the hand-over to the framework's interpreter).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cosmos3_serve.errors import FieldError, UsageError
from cosmos3_serve.settings import GeneratorSettings, ReasonerSettings, Settings

CODE: Final = "setting_ignored"


@dataclass(frozen=True, slots=True)
class Unused:
    """Fields that have no effect while `when` holds; `where` says in which mode, `remedy` what to do instead."""

    when: Callable[[Any], bool]
    fields: tuple[str, ...]
    where: str
    remedy: str


_GENERATOR: Final = (
    Unused(
        lambda s: s.engine == "diffusers", ("parallelism_preset", "framework_args"), "with --engine diffusers",
        "leave it out, or use --engine framework",
    ),
    Unused(
        lambda s: s.engine == "framework", ("device",), "with --engine framework, which takes the GPUs of Ray",
        "leave it out, or use --engine diffusers",
    ),
    Unused(
        lambda s: s.engine == "framework" and s.guardrails, ("guardrail_revision",),
        "with --engine framework, whose guardrail revision is pinned", "leave it out, or use --engine diffusers",
    ),
    Unused(
        lambda s: not s.guardrails, ("guardrail_revision", "guardrail_controversial", "guardrail_timeout_s"),
        "with --no-guardrails", "leave it out, or leave guardrails on",
    ),
    Unused(
        lambda s: s.max_num_seqs is not None and s.max_num_seqs > s.max_batch_size, ("max_num_seqs",),
        "above --max-batch-size, since a wave is never larger than that", "raise --max-batch-size too, or lower it",
    ),
)  # fmt: skip
_REASONER: Final = (
    Unused(
        lambda s: s.routing == "round-robin", ("session_mode", "session_ttl_s", "session_headers"),
        "with --routing round-robin, which keeps no sessions", "leave it out, or use --routing session-affinity",
    ),
    Unused(
        lambda s: not s.workers.scales, ("scale_load", "scale_down_after_s"), "with a fixed number of --workers",
        "leave it out, or give --workers a range such as 2:8",
    ),
    Unused(
        lambda s: s.media_store is None, ("media_store_bytes", "media_store_tenant_bytes"), "without --media-store",
        "name the shared store, or use --store-bytes for this machine's",
    ),
)  # fmt: skip
_RULES: Final[dict[type[Settings], tuple[Unused, ...]]] = {
    GeneratorSettings: _GENERATOR,
    ReasonerSettings: _REASONER,
}


def refuse_ignored(settings: Settings) -> None:
    """
    Raises:
        UsageError: `setting_ignored`; `errors` has a row for each setting that would have no effect.
    """
    rules = _RULES.get(type(settings), ())
    found: dict[str, FieldError] = {}
    for rule in rules:
        if not rule.when(settings):
            continue
        for name in rule.fields:
            if getattr(settings, name) != type(settings).model_fields[name].default:
                flag = settings.flag_name(name)
                found.setdefault(name, FieldError(flag, f"has no effect {rule.where}", rule.remedy))
    if found:
        errors = list(found.values())
        raise UsageError(
            "; ".join(f"{e.field} {e.message}" for e in errors),
            code=CODE,
            remedy="; ".join(dict.fromkeys(f"{e.field}: {e.remedy}" for e in errors)),
            errors=errors,
        )
