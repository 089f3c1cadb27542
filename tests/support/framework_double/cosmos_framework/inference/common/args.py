"""DOUBLE, written from a description of upstream's contract: what a deployment answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pydantic


class SampleOutput(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    content: dict[str, Any] = {}
    files: list[Path] = []

    def map_files(self, func: Callable[[Path], Path]) -> "SampleOutput":
        return self.model_copy(update={"files": list(map(func, self.files))})


class SampleOutputs(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    args: dict[str, Any]
    status: Literal["success", "error", "skip"] = "success"
    message: str | None = None
    stack_trace: str | None = None
    outputs: list[SampleOutput] = []

    def map_files(self, func: Callable[[Path], Path]) -> "SampleOutputs":
        return self.model_copy(update={"outputs": [output.map_files(func) for output in self.outputs]})
