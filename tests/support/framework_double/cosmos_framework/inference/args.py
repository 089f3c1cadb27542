"""DOUBLE, written from a description of upstream's contract: the argument classes."""

from pathlib import Path
from typing import Any, ClassVar

import pydantic

from cosmos3_serve.contract.sample import FIELD_NAMES


class _Overrides(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", protected_namespaces=())

    def build_sample(self, *, model_config: Any) -> "OmniSampleArgs":
        given = self.model_dump(exclude_none=True)
        path = given.pop("prompt_path", None)
        if path is not None and "prompt" not in given:
            given["prompt"] = Path(path).read_text().strip()
        return OmniSampleArgs(**({"seed": None, "prompt": "", "num_frames": 1, "extra": {}} | given))

    def download(self, output_dir: Path) -> None:
        raise AssertionError("upstream would fetch by itself here: nobody may call this")


OmniSampleOverrides = pydantic.create_model(  # type: ignore[call-overload]
    "OmniSampleOverrides", __base__=_Overrides, __module__=__name__, **dict.fromkeys(FIELD_NAMES, (Any, None))
)


class OmniSampleArgs(pydantic.BaseModel):
    """Upstream's has 72 fields; `name` and `output_dir` are the ones without which it raises."""

    model_config = pydantic.ConfigDict(extra="allow", protected_namespaces=())

    name: str
    output_dir: Path
    seed: int | None
    prompt: str


class OmniSetupArgs(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    checkpoint_path: str
    output_dir: Path
    guardrails: bool
    parallelism_preset: str
    use_torch_compile: bool
    max_num_seqs: int | None
    max_model_len: int | None
    keep_going: bool
    debug: bool
    cp_size: int
    cfgp_size: int
    dp_shard_size: int
    dp_replicate_size: int

    @property
    def world_size(self) -> int:
        return max(self.dp_replicate_size * self.dp_shard_size, self.cp_size * self.cfgp_size)


class OmniSetupOverrides(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    CHECKPOINTS: ClassVar[dict[str, Any]] = {}

    checkpoint_path: str
    output_dir: Path | None = None
    guardrails: bool = True
    parallelism_preset: str = "latency"
    use_torch_compile: bool = True
    max_num_seqs: int | None = 1
    max_model_len: int | None = None
    keep_going: bool = False
    debug: bool = False
    cp_size: int = 0
    cfgp_size: int = 0
    dp_shard_size: int = 0
    dp_replicate_size: int = 0

    def build_setup(
        self, world_size: int | None = None, local_world_size: int | None = None, device_memory_bytes: int | None = None
    ) -> OmniSetupArgs:
        if not Path(self.checkpoint_path).is_dir():
            raise ValueError("no such checkpoint")
        world = world_size or 1
        latency = self.parallelism_preset == "latency"
        cfgp = self.cfgp_size or (min(2, world) if latency else 1)
        cp = self.cp_size or (world // cfgp if latency else 1)
        sizes = {"cp_size": cp, "cfgp_size": cfgp, "dp_shard_size": self.dp_shard_size or world, "dp_replicate_size": 1}
        return OmniSetupArgs(**(self.model_dump() | sizes))
