"""DOUBLE: no model. Splits batches, refuses what upstream refuses to mix, writes grey pictures, misbehaves when told.

A sample tells it by `extra.double`: `blocked`, `raise`, `oom`, `exit`, `hang`, `slow`.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from cosmos_framework.inference.args import OmniSampleArgs, OmniSetupArgs
from cosmos_framework.inference.common.args import SampleOutput, SampleOutputs

EVENTS_ENV = "COSMOS3_DOUBLE_EVENTS"
SAME = ("num_steps", "guidance", "guidance_interval", "shift", "sigma_max", "normalize_cfg")


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class OmniInference:
    def __init__(self, setup: OmniSetupArgs) -> None:
        self.setup = setup
        self.model = SimpleNamespace(config=None)

    @classmethod
    def create(cls, setup_args: OmniSetupArgs, /) -> "OmniInference":
        from cosmos_framework.inference.loading import load

        note("loaded", load(setup_args))
        return cls(setup_args)

    def create_batches(
        self, sample_args_list: Sequence[OmniSampleArgs]
    ) -> Iterator[tuple[list[OmniSampleArgs], dict[str, Any]]]:
        note("batch", [sample.name for sample in sample_args_list])
        size = self.setup.max_num_seqs or 1
        for start in range(0, len(sample_args_list), size):
            yield list(sample_args_list[start : start + size]), {}

    def generate_batch(
        self, sample_args_list: Sequence[OmniSampleArgs], data_batch: dict[str, Any], *, save_outputs: bool = True
    ) -> list[SampleOutputs]:
        assert save_outputs, "a service of ours always wants files"
        note("inference", [sample.name for sample in sample_args_list])
        for field in SAME:
            values = [getattr(sample, field, None) for sample in sample_args_list]
            if any(value != values[0] for value in values):
                raise ValueError(f"Attribute '{field}' is not the same for all samples: {values}")
        for sample in sample_args_list:
            self._misbehave(sample)
        return [self._write(sample) for sample in sample_args_list]

    @staticmethod
    def _misbehave(sample: Any) -> None:
        told = (sample.extra or {}).get("double", "")
        if told == "blocked":
            raise ValueError(f"Guardrail blocked prompt '{sample.output_dir}': '{sample.prompt}'")
        if told == "raise":
            raise RuntimeError(f"no luck with {sample.prompt} in {sample.output_dir}")
        if told == "oom":
            raise OutOfMemoryError("CUDA out of memory")
        if told == "exit":
            once = Path(sample.output_dir).parent / f"{sample.name}.died"
            if not once.exists():
                once.touch()
                os._exit(1)
        if told == "hang":
            time.sleep(3600)
        if told == "slow":
            time.sleep(2)

    def _write(self, sample: Any) -> SampleOutputs:
        folder = Path(sample.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {}
        if str(sample.model_mode) == "reasoner":
            file = folder / "reasoner_text.txt"
            file.write_text("a double has no opinion")
            content = {"reasoner_text": file.read_text()}
        else:
            file = folder / "vision.jpg"
            Image.new("RGB", (256, 256), (128, 128, 128)).save(file)
        return SampleOutputs(args=sample.model_dump(mode="json"), outputs=[SampleOutput(content=content, files=[file])])


def note(event: str, names: list[str]) -> None:
    path = os.environ.get(EVENTS_ENV)
    if path:
        with Path(path).open("a") as events:
            events.write(json.dumps({"event": event, "names": names, "pid": os.getpid()}) + "\n")
