"""`ray-serve`: resolve the settings and the engine, then hand over to the generator service."""

from __future__ import annotations

import importlib.util
import json as jsonlib
import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.options import settings_options
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.engines.framework import interpreter
from cosmos3_serve.settings import Engine, GeneratorSettings

INSTALL = "pip install '.[diffusers]' in a checkout of cosmos3-serve"
ENGINE_ENV = GeneratorSettings.env_name("engine")


def register(app: typer.Typer) -> None:
    app.command("ray-serve")(ray_serve)


@settings_options(GeneratorSettings)
def ray_serve(
    flags: dict[str, Any],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Make the checks of a start, print the settings.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout once ready.")] = False,
) -> None:
    """Start the generator service on Ray Serve.

    It runs until SIGTERM or Ctrl-C, then drains. The bearer token comes from NPA_COSMOS3_RAY_TOKEN, or from the file
    that NPA_COSMOS3_RAY_TOKEN_FILE names.
    """
    settings = GeneratorSettings.load(flags)
    settings = settings.model_copy(update={"engine": resolve_engine(settings, os.environ)})
    if settings.engine == "framework" and not interpreter.runs_here():
        flagged = (("--json", json), ("--dry-run", dry_run))
        interpreter.hand_over(settings, [flag for flag, given in flagged if given], os.environ)
    if dry_run:
        from cosmos3_serve.generator.dry_run import dry_run as run_dry

        output.emit(run_dry(settings))
        return
    from cosmos3_serve.generator.serve import run_generator

    run_generator(settings, on_ready=_ready_as_json if json else _ready_in_words)


def _ready_as_json(ready: Mapping[str, Any]) -> None:
    # One line: whoever started the service reads one line and knows where it is.
    print(jsonlib.dumps(ready, sort_keys=True), flush=True)


def _ready_in_words(ready: Mapping[str, Any]) -> None:
    guardrails = "on" if ready["guardrails"] else "off"
    output.console().print(
        f"ready at {ready['endpoint']}: {ready['model']}, engine {ready['framework_revision']},"
        f" weights {ready['weights']}, guardrails {guardrails}, target {ready['target']} ({ready['target_status']})",
        markup=False,
    )


def resolve_engine(settings: GeneratorSettings, environ: Mapping[str, str]) -> Engine:
    """The engine to run: the one asked for, else the framework where its interpreter is found.

    Raises:
        StartRefused: the engine cannot run here; the remedy names both ways out.
    """
    there = interpreter.runs_here() or interpreter.framework_python(environ).is_file()
    engine: Engine | None = settings.engine
    missing = [name for name in ("diffusers", "ray") if importlib.util.find_spec(name) is None]
    if engine is None:
        if not there:
            ours = f"install the diffusers engine ({INSTALL}), then set {ENGINE_ENV}=diffusers"
            if not missing:
                ours = f"the diffusers engine is installed: set {ENGINE_ENV}=diffusers, or pass --engine diffusers"
            raise StartRefused(
                "the default engine is `framework`, and its interpreter is not on this machine",
                code="engine_not_found",
                remedy=f"{ours}; or install the framework (docs/framework.md) and name its python: "
                + interpreter.PYTHON_ENV,
            )
        engine = "framework"
    if engine == "framework":
        if not interpreter.runs_here():
            interpreter.check(interpreter.framework_python(environ))
        return engine
    if missing:
        raise StartRefused(
            f"the diffusers engine is not installed: {' and '.join(missing)} cannot be imported",
            code="engine_not_found",
            remedy=INSTALL,
        )
    return engine
