"""The block-world checkpoint: small, trained on scenes that `cosmos3_serve.blockworld` draws, found without a network.

It ships beside the package, not in it: in `models/blockworld/` of the source tree and of the sdist, and as the
distribution `cosmos3-blockworld`, which installs the same files as the package `cosmos3_blockworld`.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from cosmos3_serve.errors import CheckpointUnavailable
from cosmos3_serve.weights.manifest import PayloadFile, read_payload

BLOCKWORLD = "blockworld"
MANIFEST = ".manifest.json"
PACKAGE = "cosmos3_blockworld"
SOURCE = Path(__file__).parents[3] / "models" / BLOCKWORLD


def find_blockworld() -> Path:
    """Directory of the checkpoint, every byte as its manifest says.

    Raises:
        CheckpointUnavailable: it is neither installed nor in a source tree, or a file is not as it was published.
    """
    path = _installed() or SOURCE
    try:
        listed = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = sorted(PayloadFile(*entry) for entry in listed)
        found = read_payload(path)
    except FileNotFoundError:
        raise CheckpointUnavailable(
            "the block-world checkpoint is not installed",
            code="checkpoint_not_found",
            remedy="run from the source tree, install from there with: pip install ./models, or use `tiny`",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointUnavailable(
            f"the block-world checkpoint cannot be read ({type(error).__name__})",
            code="checkpoint_manifest",
            remedy="restore models/blockworld from the source tree and install it again: pip install ./models",
        ) from None
    wrong = sorted({f.path for f in set(found) ^ set(expected)})
    if wrong or not expected:
        raise CheckpointUnavailable(
            f"{len(wrong)} files of the block-world checkpoint are not as published, first {(wrong or [MANIFEST])[0]}",
            code="checkpoint_altered",
            remedy="restore models/blockworld from the source tree and install it again: pip install ./models",
        )
    return path


def _installed() -> Path | None:
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None
