"""Start: what must hold in the framework's interpreter before Ray starts."""

from __future__ import annotations

import os
import sys

import structlog

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.engines.framework.doctor import judge
from cosmos3_serve.generator.engines.framework.examine import facts, search_path
from cosmos3_serve.generator.engines.framework.interpreter import DOCTOR, TRAINING_ENV
from cosmos3_serve.generator.engines.framework.revision import prove
from cosmos3_serve.generator.engines.framework.setup import extra_fields
from cosmos3_serve.settings import GeneratorSettings

log = structlog.get_logger(__name__)


def prepare_framework(settings: GeneratorSettings) -> None:
    """Check the interpreter, prove the revision, refuse what upstream would let go wrong.

    Raises:
        StartRefused: `framework_missing`, `framework_revision`, `framework_incomplete`.
        UsageError: a --framework-arg that is ours to set.
    """
    extra_fields(settings)
    if TRAINING_ENV in os.environ and os.environ[TRAINING_ENV] != "0" and "cosmos_framework" in sys.modules:
        raise StartRefused(
            f"{TRAINING_ENV} is {os.environ[TRAINING_ENV]!r} and the framework is imported already",
            code="framework_incomplete",
            remedy=f"start with {TRAINING_ENV}=0",
        )
    # For this process and all that Ray starts, whatever environment the command was typed in.
    os.environ[TRAINING_ENV] = "0"
    os.environ["PATH"] = search_path()
    proof = prove()
    log.info("framework_revision_proved", revision=proof.revision, git=proof.git or "silent", files=proof.files)
    wrong = [
        finding
        for finding in judge(facts(deep=False), guardrails=settings.guardrails)
        if not finding.ok and finding.required
    ]
    if wrong:
        raise StartRefused(
            "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong),
            code="framework_incomplete",
            remedy="; ".join(dict.fromkeys(finding.fix for finding in wrong if finding.fix)) or DOCTOR,
        )
