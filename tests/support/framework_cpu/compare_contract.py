"""Test support: our resolution of samples against upstream's own argument classes, in the framework's interpreter.

Reads a JSON list of samples on stdin, with local paths for media. Prints for each the fields in which `build_sample`
of the real `OmniSampleOverrides`, given what our engine would give it, differs from what our contract resolved, or the
exception. The model config is upstream's own Cosmos3-Nano; no weights are loaded.
"""

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["COSMOS_TRAINING"] = "0"

from cosmos_framework.inference.args import OmniSampleOverrides
from cosmos_framework.inference.common.config import CONFIG_DIR, deserialize_config_dict

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.generator.engines.framework.overrides import override_fields

# Left to upstream (its own long text), or ours to set.
OWN = ("negative_prompt", "output_dir")


def namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{str(name): namespace(item) for name, item in value.items()})
    return value


def compare(asked: dict[str, Any], config: Any) -> Any:
    resolved = resolve_sample(SampleOverrides.model_validate(asked), FRAMEWORK_PROFILE, seed=5)
    ours = resolved.model_dump(mode="json") | {"seed": asked.get("seed", 5)}
    try:
        overrides = OmniSampleOverrides(**override_fields(ours, "/out/r/" + asked["name"]))
        theirs = overrides.build_sample(model_config=config).model_dump(mode="json")
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    skipped = {name for name in OWN if name == "output_dir" or ours[name] is None}
    return {
        name: [ours.get(name), value]
        for name, value in theirs.items()
        if name not in skipped and ours.get(name, "not ours") != value
    }


def main() -> None:
    config = namespace(deserialize_config_dict(CONFIG_DIR / "model/Cosmos3-Nano.yaml")["model"]["config"])
    print(json.dumps([compare(asked, config) for asked in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
