"""Endpoint: one of OpenAI's ways to ask for words. All take the same way through the gateway; here is what differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cosmos3_serve.reasoner.gateway.fields import CHAT_FIELDS, COMPLETION_FIELDS, RESPONSE_FIELDS, Fields

Turns = Literal["messages", "prompt", "input"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    Args:
        path: the same here and on a replica.
        turns: the field that holds the question.
        limits: fields that bound the tokens of an answer.
        chunk: what an event of its streams calls itself as `object`; empty where events have types instead.
    """

    path: str
    turns: Turns
    fields: Fields
    limits: tuple[str, ...]
    chunk: str = ""


CHAT = Endpoint(
    "/v1/chat/completions", "messages", CHAT_FIELDS, ("max_tokens", "max_completion_tokens"), "chat.completion.chunk"
)
COMPLETIONS = Endpoint("/v1/completions", "prompt", COMPLETION_FIELDS, ("max_tokens",), "text_completion")
RESPONSES = Endpoint("/v1/responses", "input", RESPONSE_FIELDS, ("max_output_tokens",))
ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES)
