"""Settings of a service that a cluster's own tools deploy: from their configuration's `args`, over the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from cosmos3_serve.errors import FieldError, StartRefused, UsageError
from cosmos3_serve.settings import GeneratorSettings, ReasonerSettings

Service = TypeVar("Service", GeneratorSettings, ReasonerSettings)


def joined_settings(model: type[Service], args: Mapping[str, Any]) -> Service:
    """
    Raises:
        UsageError: a name that is no setting, or a value that does not fit.
        StartRefused: code `port_unavailable`: no fixed port, which nobody else could know.
    """
    unknown = [
        FieldError(name, "is no setting", "see `cosmos3 settings`") for name in args if name not in model.model_fields
    ]
    if unknown:
        raise UsageError(
            f"invalid settings: {', '.join(e.field for e in unknown)}", remedy="see `cosmos3 settings`", errors=unknown
        )
    # Whatever an operator wrote: these applications live in the cluster that deploys them.
    settings = model.load({**args, "ray_address": "auto"})
    if not settings.port:
        raise StartRefused(
            "a service of a cluster needs a port that others know", code="port_unavailable", remedy="set port"
        )
    return settings
