"""Mutations: one line of one function of the product is altered in place, to see that a check notices."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any


@contextmanager
def mutated(function: Callable[..., Any], old: str, new: str) -> Iterator[None]:
    """Within, `function` behaves as if `old` in its source were `new`, wherever it was imported to.

    Raises:
        LookupError: the function does not contain `old`: the mutation is out of date.
    """
    function = inspect.unwrap(function)
    path = Path(inspect.getfile(function))
    own = inspect.getsource(function)
    if old not in own:
        raise LookupError(f"{function.__qualname__} does not contain {old!r}")
    source = path.read_text(encoding="utf-8").replace(own, own.replace(old, new))
    before = function.__code__
    function.__code__ = _code(compile(source, str(path), "exec", dont_inherit=True), function.__qualname__)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        function.__code__ = before  # type: ignore[attr-defined]


def _code(code: CodeType, name: str) -> CodeType:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    while inner:
        found = inner.pop()
        if found.co_qualname == name:
            return found
        inner += [constant for constant in found.co_consts if isinstance(constant, CodeType)]
    raise LookupError(name)
