"""Setup: upstream's `OmniSetupArgs` from our settings, with what upstream would let go wrong refused first."""

from __future__ import annotations

import json
from typing import Any, Final

from cosmos3_serve.contract.rules import SHARDED
from cosmos3_serve.errors import CheckpointUnavailable, FieldError, UsageError
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import NANO, Checkpoint

# Said by our own flags, or meaningless for a service; `--framework-arg` may not contradict them.
OWNED: Final = {
    "checkpoint_path": "--checkpoint",
    "output_dir": "--output-path",
    "guardrails": "--guardrails/--no-guardrails",
    "parallelism_preset": "--parallelism-preset",
    "max_num_seqs": "--max-num-seqs",
    "max_model_len": "--max-num-seqs",
    "keep_going": "nothing: a broken wave is rerun sample by sample",
    "sample_overrides": "the fields of each sample",
    "config_file": "--checkpoint",
    "credential_path": "--checkpoint",
}
NANO_NAME = "Cosmos3-Nano"  # upstream's registry name of the checkpoint


def extra_fields(settings: GeneratorSettings) -> dict[str, Any]:
    """`--framework-arg name=value` as fields of `OmniSetupOverrides`; values are JSON where they parse, else text.

    Raises:
        UsageError: no `name=value`, or a field that one of our own flags sets.
    """
    fields: dict[str, Any] = {}
    for text in settings.framework_args:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise UsageError(
                f"--framework-arg {text!r} is not name=value", remedy="for example use_torch_compile=false"
            )
        if name in OWNED:
            raise UsageError(f"--framework-arg sets {name}, which is ours to set", remedy=f"use {OWNED[name]}")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def setup_fields(settings: GeneratorSettings, checkpoint: Checkpoint) -> dict[str, Any]:
    """Keyword arguments for `OmniSetupOverrides`."""
    return {
        **extra_fields(settings),
        "checkpoint_path": str(checkpoint.path),
        "output_dir": settings.output_path,
        "guardrails": settings.guardrails,
        "parallelism_preset": settings.parallelism_preset,
        "max_num_seqs": settings.inference_batch_limit,
        "keep_going": False,
    }


def build_setup(settings: GeneratorSettings, checkpoint: Checkpoint) -> Any:
    """Upstream's `OmniSetupArgs`, to bind its deployment with. Imports upstream's argument classes, and torch.

    Raises:
        UsageError: `--framework-arg` names a field that upstream does not have, or a value that it refuses; or the
            result would spread a batch over data-parallel groups.
        CheckpointUnavailable: upstream does not recognise the checkpoint's layout.
    """
    from cosmos_framework.inference.args import OmniSetupOverrides
    from pydantic import ValidationError

    fields = setup_fields(settings, checkpoint)
    if checkpoint.id == NANO and not (checkpoint.path / "config.json").is_file():
        # A directory has no registry entry, and this layout no config of the whole model; the name's own belongs to it.
        fields["config_file"] = OmniSetupOverrides.CHECKPOINTS[NANO_NAME].config_file
    try:
        setup = OmniSetupOverrides(**fields).build_setup(world_size=settings.world_size)
    except ValidationError as error:
        found = [FieldError(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors(include_input=False)]
        text = "; ".join(f"{e.field}: {e.message}" for e in found)
        raise UsageError(
            f"the framework refuses its setup: {text}", remedy="see --framework-arg", errors=found
        ) from None
    except (ValueError, AssertionError) as error:
        raise CheckpointUnavailable(
            f"the framework cannot be set up with checkpoint {checkpoint.id} ({type(error).__name__})",
            code="checkpoint_incomplete",
            remedy="give a directory with config.json and *.safetensors, or a diffusers or DCP layout that it knows",
        ) from None
    groups = setup.world_size // (setup.cp_size * setup.cfgp_size)
    if groups > 1:
        raise UsageError(
            f"the parallelism asked for has {groups} data-parallel groups: {SHARDED}",
            code="parallelism",
            remedy="leave dp_*, cp_size and cfgp_size to --parallelism-preset latency",
        )
    return setup
