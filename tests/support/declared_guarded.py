"""The declared generator's builders with doubles in place of what is gated: the guardrail packages and both deciders.

A cluster imports this module where the rendered configuration names `cosmos3_serve.generator.application`. Probe,
fetch, hashes, tokenizer data, self-tests, deployments and records are the product's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from support.guard import BLOCK, CheckerDouble

from cosmos3_serve.generator import application, prepare
from cosmos3_serve.generator.guardrails import checkers, replica
from cosmos3_serve.generator.guardrails.text_guard import TextChecker
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles


class Words:
    """A double of the package's word lists: those of the stub Hub."""

    blocklist_words = ("stubword",)
    exact_match_words = ("stub phrase",)

    def is_safe(self, text: str) -> tuple[bool, str]:
        return not any(word in text for word in (*self.blocklist_words, *self.exact_match_words, BLOCK)), ""


class Model(CheckerDouble):
    def judge(self, text: str) -> bool:
        return text != checkers.HARMFUL and super().judge(text)


def load(files: GuardrailFiles, controversial: checkers.Controversial) -> list[TextChecker]:
    """In the replica's process. The product's own loading, which the package's NLTK has to find its data by."""

    def word_lists(files: GuardrailFiles) -> Any:
        first = Path(os.environ["NLTK_DATA"].split(os.pathsep)[0])
        if first != files.nltk_data or not (first / "tokenizers").is_dir():
            raise RuntimeError("NLTK would not find the proved data first")
        return Words()

    checkers.load_blocklist = word_lists
    checkers._qwen = lambda files, controversial: Model("qwen3guard")  # type: ignore[assignment, return-value]
    return checkers.load_checkers(files, controversial)


def build(args: Mapping[str, Any]) -> Any:
    prepare.require_packages = lambda engine: None
    return application.build(args)


def build_guard(args: Mapping[str, Any]) -> Any:
    from support.declared_guarded import load as by_name  # so that the replica finds it by its module

    prepare.require_packages = lambda engine: None
    replica.guard_application = partial(replica.guard_application, load=by_name)
    return application.build_guard(args)
