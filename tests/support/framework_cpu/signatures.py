"""Test support: the signatures of what our service and upstream call, of whichever `cosmos_framework` is here.

Prints a JSON object: name to a list of parameters (name, kind, default). Run it with the real one and with the double.
"""

import importlib
import inspect
import json
import os
from typing import Any

os.environ["COSMOS_TRAINING"] = "0"

ROOT = "cosmos_framework.inference"
CALLED = {
    "args": ["OmniSampleOverrides.build_sample", "OmniSampleOverrides.download", "OmniSetupOverrides.build_setup"],
    "common.checkpoints": ["_materialize_avae_ckpt"],
    "common.args": ["SampleOutput.map_files", "SampleOutputs.map_files"],
    "inference": ["OmniInference.create", "OmniInference.create_batches", "OmniInference.generate_batch"],
    "ray.serve": [
        *(f"OmniModelDeployment.{name}" for name in ("__init__", "reconfigure", "generate", "_generate_batch")),
        *(f"OmniModelWorker.{name}" for name in ("__init__", "get_address_and_port", "setup_distributed")),
        "OmniModelWorker.generate_batch",
    ],
}


def plain(found: Any) -> Any:
    """The class that Ray or Serve has wrapped."""
    found = getattr(found, "func_or_class", found)
    return getattr(getattr(found, "__ray_metadata__", None), "modified_class", found)


def signature(module: Any, path: str) -> list[list[str]]:
    name, _, method = path.partition(".")
    static = plain(getattr(module, name))
    if method:
        static = inspect.getattr_static(static, method)
    function = inspect.unwrap(getattr(static, "__func__", static))
    return [
        [each.name, each.kind.name, "" if each.default is each.empty else repr(each.default)]
        for each in inspect.signature(function, follow_wrapped=True).parameters.values()
    ]


def main() -> None:
    found = {}
    for name, paths in CALLED.items():
        module = importlib.import_module(f"{ROOT}.{name}")
        found |= {f"{name}.{path}": signature(module, path) for path in paths}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
