"""What the settings models share: where a value comes from, its flag, its variable and its help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cosmos3_serve.errors import FieldError, UsageError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

TOKEN_ENV = "NPA_COSMOS3_RAY_TOKEN"
TOKEN_FILE_ENV = "NPA_COSMOS3_RAY_TOKEN_FILE"
REASONER_TOKEN_ENV = "COSMOS3_REASONER_TOKEN"
REASONER_TOKEN_FILE_ENV = "COSMOS3_REASONER_TOKEN_FILE"
MIB = 1024 * 1024


def option(default: Any, help: str, *, env: str | None = None, flag: str | None = None, **bounds: Any) -> Any:
    """A settings field with its environment variable (`env`), its flag (default: from the name) and its help."""
    return Field(default, description=help, json_schema_extra={"env": env, "flag": flag}, **bounds)


def listed(value: Any) -> Any:
    """For a field that may be repeated: an environment variable holds a comma list."""
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


class Settings(BaseModel):
    """Base of the settings models: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def env_name(cls, field: str) -> str | None:
        extra = cls.model_fields[field].json_schema_extra
        return extra.get("env") if isinstance(extra, dict) else None  # type: ignore[return-value]

    @classmethod
    def flag_name(cls, field: str) -> str:
        extra = cls.model_fields[field].json_schema_extra
        flag = extra.get("flag") if isinstance(extra, dict) else None
        return str(flag) if flag else "--" + field.replace("_", "-")

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Self:
        """Merge flags (None = not given) over the environment over the defaults.

        Raises:
            UsageError: a value does not fit; `errors` names the flag or variable that carried it.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for name in cls.model_fields:
            env = cls.env_name(name)
            if env and environ.get(env, "").strip():
                values[name], origin[name] = environ[env].strip(), env
            if flags and flags.get(name) is not None:
                values[name], origin[name] = flags[name], cls.flag_name(name)
        try:
            return cls(**values)
        except ValidationError as error:
            found = [
                FieldError(
                    origin.get(str(e["loc"][0]), str(e["loc"][0])) if e["loc"] else "settings",
                    e["msg"].removeprefix("Value error, "),
                )
                for e in error.errors()
            ]
            names = ", ".join(e.field for e in found)
            remedy = "see the allowed values: the same command with --help"
            raise UsageError(f"invalid settings: {names}", remedy=remedy, errors=found) from None


def _unprivileged(value: int) -> int:
    if 0 < value < 1024:
        raise ValueError("must be 0 or at least 1024")
    return value


Port = Annotated[int, AfterValidator(_unprivileged)]
Engine = Literal["framework", "diffusers"]
Repeated = tuple[str, ...]  # a flag that may be given several times
