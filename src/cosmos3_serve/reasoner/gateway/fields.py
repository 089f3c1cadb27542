"""Fields of a request: which the gateway reads, which only the engine does, which have no effect, which are refused.

The engine ignores a field that it does not know, so nothing unknown may reach it: a client would take an answer for one
that its field had shaped. What is refused although OpenAI or the engine has it names the remedy. `docs/reasoner.md`
shows the same table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from cosmos3_serve.errors import FieldError, InvalidRequest


class Role(StrEnum):
    """Who acts on a field."""

    GATEWAY = "gateway"  # reads it; the engine gets it too where it has a use for it
    ENGINE = "vLLM"
    NO_EFFECT = "no effect"  # taken, since it changes no answer: labels and hints of the client
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """
    Args:
        note: for the reader of the documentation; of a refused field, the remedy.
        values: the only values taken (null besides); None: any.
    """

    role: Role
    note: str = ""
    values: tuple[Any, ...] | None = None


class Fields(Mapping[str, Field]):
    """The fields of one endpoint."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = dict(fields)
        self._plain = frozenset(
            name for name, f in fields.items() if f.role in (Role.GATEWAY, Role.ENGINE) and f.values is None
        )

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def check(self, body: dict[str, Any], path: str) -> None:
        """Refuse what nobody would act on, and take out what has no effect (`body` is changed in place).

        Raises:
            InvalidRequest: code `unknown_field` or `unsupported_field`; `errors[0].field` names it.
        """
        for name in body.keys() - self._plain:
            field = self._fields.get(name)
            if field is None:
                raise _unknown(name, path, self._fields)
            value = body[name]
            if field.role is Role.REFUSED or field.role is Role.NO_EFFECT or value is None:
                del body[name]
            if value is None or (field.role is not Role.REFUSED and (field.values is None or value in field.values)):
                continue
            raise _unsupported(name, path, field)


def _unknown(name: str, path: str, known: Mapping[str, Field]) -> InvalidRequest:
    shown = ascii(name[:60])
    near = get_close_matches(name[:60], [n for n, f in known.items() if f.role is not Role.REFUSED], 1, 0.8)
    remedy = f"did you mean {near[0]}?" if near else "remove it; docs/reasoner.md lists the fields"
    detail = f"{path} has no field {shown}"
    return InvalidRequest(detail, code="unknown_field", remedy=remedy, errors=(FieldError(name[:200], detail, remedy),))


def _unsupported(name: str, path: str, field: Field) -> InvalidRequest:
    if field.values is None:
        detail, remedy = f"{path} does not take {name}", field.note
    else:
        shown = " or ".join(map(shown_value, field.values))
        detail, remedy = f"{name} can only be {shown} here", field.note or f"send {shown}, or leave it out"
    return InvalidRequest(detail, code="unsupported_field", remedy=remedy, errors=(FieldError(name, detail, remedy),))


def shown_value(value: Any) -> str:
    """As JSON has it, for a reader."""
    return value if isinstance(value, str) else json.dumps(value)


def _gateway(note: str, values: tuple[Any, ...] | None = None) -> Field:
    return Field(Role.GATEWAY, note, values)


def _engine(names: str) -> dict[str, Field]:
    return dict.fromkeys(names.split(), Field(Role.ENGINE))


def _no_effect(names: str, values: tuple[Any, ...] | None = None) -> dict[str, Field]:
    return dict.fromkeys(names.split(), Field(Role.NO_EFFECT, "", values))


def _refused(names: str, remedy: str) -> dict[str, Field]:
    return dict.fromkeys(names.split(), Field(Role.REFUSED, remedy))


_TIERS = ("auto", "default")
_NOT_STORED = "nothing is stored here: keep the answer yourself"
_LIMIT = "a whole number from 1 to the model's length"
_SCHEMA = "its JSON schemas are checked, then vLLM's"

_EVERYWHERE: dict[str, Field] = {
    "model": _gateway("the served one"),
    "stream": _gateway("true or false"),
    "cosmos3": _gateway('`{"explain": true}`; taken out'),
    "session_id": _gateway("names the session where no header does; taken out"),
    "cache_salt": _gateway("replaced by the tenant's own"),
    "structured_outputs": _gateway(_SCHEMA),
    **_engine(
        "temperature top_p top_k min_p seed stop stop_token_ids ignore_eos frequency_penalty presence_penalty"
        " repetition_penalty logit_bias include_stop_str_in_output skip_special_tokens watermarking user priority"
        " vllm_xargs"
    ),
    **_no_effect("safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options"),
    **_refused(
        "request_id kv_transfer_params ec_transfer_params mm_payload return_mm_kwargs",
        "remove it: it refers to state that an engine shares with other requests",
    ),
    **_refused("moderation", "remove it: there are no guardrails here"),
    **_refused("guided_json guided_regex guided_choice guided_grammar guided_decoding_backend"
               " guided_whitespace_pattern", "use structured_outputs or response_format"),
}  # fmt: skip
_MEDIA = {
    "mm_processor_kwargs": _gateway("frame options are obeyed exactly or refused; pixel budgets within limits"),
    "media_io_kwargs": _gateway("`video`: frame options, as above; `image`: `rgba_background_color`"),
}
# Of chat and completions.
_GENERATE = {
    "n": _gateway("1 to 64; a question counts as so many"),
    "max_tokens": _gateway(_LIMIT),
    "response_format": _gateway(_SCHEMA),
    "stream_options": _gateway("`include_usage`, `continuous_usage_stats`"),
    **_engine(
        "logprobs use_beam_search length_penalty min_tokens bad_words allowed_token_ids echo"
        " spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids"
        " add_special_tokens return_tokens_as_token_ids return_token_ids return_token_offsets"
        " routed_experts_prompt_start repetition_detection thinking_token_budget stream_interval"
    ),
    "store": Field(Role.NO_EFFECT, _NOT_STORED, (False,)),
    "service_tier": Field(Role.NO_EFFECT, "", _TIERS),
    **_no_effect("metadata"),
}

CHAT_FIELDS = Fields(
    {
        "messages": _gateway("media are taken out, examined and put in"),
        **_EVERYWHERE,
        **_MEDIA,
        **_GENERATE,
        "max_completion_tokens": _gateway(_LIMIT),
        "tools": _gateway(f"{_SCHEMA}; `strict` is set where `tool_choice` demands a call and it is left out"),
        "tool_choice": _gateway("then vLLM's"),
        **_engine(
            "top_logprobs parallel_tool_calls reasoning_effort include_reasoning documents chat_template"
            " chat_template_kwargs add_generation_prompt continue_final_message return_prompt_text"
        ),
        "modalities": Field(Role.NO_EFFECT, "", (["text"],)),
        "verbosity": Field(Role.NO_EFFECT, "", ("medium",)),
        **_refused("functions function_call", "use tools and tool_choice"),
        **_refused("audio", "ask for text: the model speaks none"),
        **_refused("prediction", "remove it: the engine has no predicted outputs"),
        **_refused("web_search_options", "search yourself and put what you found into the messages"),
        **_refused("prompt_embeds", "send text"),
    }
)
COMPLETION_FIELDS = Fields(
    {
        "prompt": _gateway("text, or a list of at most 64 texts"),
        **_EVERYWHERE,
        **_GENERATE,
        "best_of": _gateway("as n; taken out"),
        **_engine("suffix"),
        **_refused("prompt_embeds", "send text"),
    }
)
RESPONSE_FIELDS = Fields(
    {
        "input": _gateway("pictures are taken out, examined and put in; videos are for chat"),
        **_EVERYWHERE,
        **_MEDIA,
        "max_output_tokens": _gateway(_LIMIT),
        "store": _gateway(_NOT_STORED, (False,)),
        "tools": _gateway("functions only; `strict` as in chat, JSON schemas too"),
        "tool_choice": _gateway("then vLLM's"),
        "text": _gateway("`format`: its JSON schema is checked; `verbosity`: medium only"),
        "service_tier": Field(Role.ENGINE, "", _TIERS),
        **_engine(
            "instructions include metadata parallel_tool_calls reasoning include_reasoning top_logprobs"
            " truncation max_tool_calls chat_template_kwargs enable_response_messages"
        ),
        "background": Field(Role.NO_EFFECT, "ask for a stream: nothing is stored here", (False,)),
        "stream_options": Field(Role.NO_EFFECT, "", ({"include_obfuscation": False}, {})),
        **_refused("previous_response_id conversation", "send the earlier turns in input: nothing is stored here"),
        **_refused("previous_input_messages", "send the earlier turns in input"),
        **_refused("prompt", "send the words in input and instructions: no templates are stored here"),
        **_refused("background_options", "remove it: there is no background work here"),
        **_refused("access_programs", "remove it: there are none here"),
        **_refused("context_management", "shorten input yourself, or send truncation"),
        **_refused("image", "set detail on each input_image part"),
    }
)
