"""What diffusers imports and this engine never runs stays out of a model replica on a CPU.

`import diffusers` brings torch's compiler for one decorator and, where transformers is installed, the base class of its
models for LoRA on text encoders: 1,000 modules, a fifth of a replica's start. We compile nothing, and of transformers
we use the tokenizer alone. diffusers runs without either: it asks whether transformers is there when it is imported,
and then does not know it for the life of the process. So this is for a replica, which is a process of its own; tests
that compare with diffusers' pipelines import it as it is.

Not on a GPU, where seconds of imports are nothing beside the weights, and environments hold more that diffusers picks
up: with peft it failed on an H200 machine, for peft cannot do without what is left out here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
HIDDEN, WANTS_ALL = "transformers", "peft"


def import_lean() -> None:
    """Import what the engine needs of torch, diffusers and transformers. What is loaded already stays as it is; where
    diffusers would find peft, nothing is left out."""
    if importlib.util.find_spec(WANTS_ALL) is not None:
        return
    import torch  # noqa: F401  # all of it, before a part has a stand-in

    with _without_compiler(), _hidden(HIDDEN):
        from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer, UniPCMultistepScheduler  # noqa: F401
    from transformers import AutoTokenizer  # noqa: F401


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # import's own sign for: not there
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _without_compiler() -> Iterator[None]:
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = _Compiler(COMPILER)
    try:
        yield
    finally:
        _withdraw()


class _Compiler(ModuleType):
    """Stands in for torch's compiler: marks no function, since none is compiled. Asked for more, it is the real one."""

    @staticmethod
    def allow_in_graph(function: Any) -> Any:
        return function

    @staticmethod
    def disable(function: Any = None, recursive: bool = True, **_: Any) -> Any:
        return _Compiler.allow_in_graph if function is None else function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # import looks for these on every module
            raise AttributeError(name)
        _withdraw()
        return getattr(importlib.import_module(COMPILER), name)


def _withdraw() -> None:
    if isinstance(sys.modules.get(COMPILER), _Compiler):
        del sys.modules[COMPILER]
