"""What is tried: the service's own settings, and levers on top of them, each with what was predicted before it ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """
    Args:
        extra: after the arguments that the service derives itself.
        env: of the engine.
        plugin: the kernel of `few_rows` is installed in the engine.
        predicted: written before the first run.
    """

    name: str
    extra: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    plugin: bool = False
    predicted: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"extra": list(self.extra), "env": dict(self.env), "predicted": self.predicted}


GPU_VIDEO = ("--mm-processor-kwargs", '{"device":"cuda"}')
PDL = {"TORCHINDUCTOR_ENABLE_PDL": "1"}
FEW_ROWS_PDL = {**PDL, "COSMOS3_FEW_ROWS_PDL": "1"}
FEW_ROWS_HEAD = {"COSMOS3_FEW_ROWS_HEAD": "1"}

VARIANTS = {
    v.name: v
    for v in (
        Variant(
            "service", predicted="the service's own arguments; decode 4.4 ms a token at 2 in flight, as measured before"
        ),
        Variant(
            "gpu-video",
            GPU_VIDEO,
            predicted=(
                "video processor on the GPU: what a cold question spends before the engine falls from 377 to about "
                "170 ms, round robin from 0.74 to 0.80 of affinity"
            ),
        ),
        Variant(
            "before",
            ("--compilation-config", "{}"),
            env={"OMP_NUM_THREADS": "8"},
            predicted=(
                "without what measured best on 2026-11-30 and is the service's own since (kernels for 1 and 2 rows, "
                "sixteen threads): 0.18 ms more a token at 1 in flight, 70 ms more before a cold question's engine"
            ),
        ),
        Variant(
            "few-rows+pdl",
            env=FEW_ROWS_PDL,
            plugin=True,
            predicted=(
                "products of few rows at 3.5 TB/s instead of 3.07 (62.8 to 55 us a layer), the weights on their way "
                "before the kernel before has ended: 0.3 ms less a token for the products, 0.2 for dependent launch"
            ),
        ),
        Variant(
            "few-rows+head",
            env=FEW_ROWS_HEAD,
            plugin=True,
            predicted=(
                "the same kernel without dependent launch: 0.25 ms less a token; output head in FP8: 0.15 ms less"
            ),
        ),
        Variant(
            "all",
            GPU_VIDEO,
            {**FEW_ROWS_PDL, **FEW_ROWS_HEAD},
            plugin=True,
            predicted="the gains add up: about 3.6 ms a token at 2 in flight",
        ),
    )
}
