"""Settings: one frozen model per service, the single source for flags, environment variables and documentation.

A value is taken from the flag, else from the environment, else from the default here; a flag that was not given never
overwrites an environment value. `option()` binds a field to both names, `load()` applies the rule, and the CLI and the
settings table of the documentation are generated from the same fields.
"""

from cosmos3_serve.settings.base import (
    FALSE_WORDS,
    MIB,
    REASONER_TOKEN_ENV,
    REASONER_TOKEN_FILE_ENV,
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    TRUE_WORDS,
    Engine,
    Settings,
    option,
)
from cosmos3_serve.settings.client import ClientSettings
from cosmos3_serve.settings.generator import GeneratorSettings
from cosmos3_serve.settings.reasoner import ReasonerSettings
from cosmos3_serve.settings.reasoner_batch import ReasonerBatchSettings
from cosmos3_serve.settings.workers import WorkerRange

__all__ = [
    "FALSE_WORDS",
    "MIB",
    "REASONER_TOKEN_ENV",
    "REASONER_TOKEN_FILE_ENV",
    "TOKEN_ENV",
    "TOKEN_FILE_ENV",
    "TRUE_WORDS",
    "ClientSettings",
    "Engine",
    "GeneratorSettings",
    "ReasonerBatchSettings",
    "ReasonerSettings",
    "Settings",
    "WorkerRange",
    "option",
]
