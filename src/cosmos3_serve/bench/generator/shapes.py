"""Shape: what is asked of the model in one sample; Mix: one shape, or several that take turns."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.contract.limits import MAX_NUM_FRAMES, MAX_NUM_STEPS
from cosmos3_serve.contract.media import Resolution

_FORM = re.compile(r"(\d{1,6})x(\d{1,6})(?:@(\w{1,8}))?", re.ASCII)


class Shape(BaseModel):
    """`frames` 1 is an image; `resolution` None leaves it to the service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    frames: int = Field(ge=1, le=MAX_NUM_FRAMES)
    steps: int = Field(ge=1, le=MAX_NUM_STEPS)
    resolution: Resolution | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`FRAMESxSTEPS`, or with `@RESOLUTION`.

        Raises:
            ValueError: anything else.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is no shape; for example 1x4 or 25x10@256")
        return cls.model_validate({"frames": int(found[1]), "steps": int(found[2]), "resolution": found[3]})

    @property
    def label(self) -> str:
        return f"{self.frames}x{self.steps}" + (f"@{self.resolution}" if self.resolution else "")

    def fields(self) -> dict[str, Any]:
        """As a sample carries them."""
        asked: dict[str, Any] = {"num_frames": self.frames, "num_steps": self.steps}
        return asked | ({"resolution": str(self.resolution)} if self.resolution else {})


class Mix(BaseModel):
    """Sample number n has shape n modulo their number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shapes: tuple[Shape, ...] = Field(min_length=1, max_length=16)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Shapes joined by `+`.

        Raises:
            ValueError: one of them is none.
        """
        return cls(shapes=tuple(Shape.parse(part) for part in text.split("+")))

    @property
    def label(self) -> str:
        return "+".join(shape.label for shape in self.shapes)

    def of(self, number: int) -> Shape:
        return self.shapes[number % len(self.shapes)]
