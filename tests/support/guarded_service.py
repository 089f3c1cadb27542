"""A real generator service with guardrails on, over a stub Hub and doubles of what is gated. For tests alone.

Everything between the settings and the record is the product's: probe, fetch, hashes, tokenizer data, the text guard in
Serve, the gate, the media check's place in the engine. Doubles: the Hub, the packages' presence, both text checkers and
the face filter (`support/packages`). No setting of the product leads here: this module is run in the service's place.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from support.guard import CheckerDouble

from cosmos3_serve.errors import Cosmos3Error, GuardrailsUnavailable
from cosmos3_serve.generator.local import LocalGenerator

BROKEN_ENV = "COSMOS3_TEST_BROKEN_CHECKERS"
MODEL_DEPLOYED = "the model is deployed"


def load_doubles(files: object, controversial: str) -> list[CheckerDouble]:
    if os.environ.get(BROKEN_ENV):
        raise GuardrailsUnavailable("the double is told not to load", code="guardrail_selftest")
    return [CheckerDouble("words"), CheckerDouble("model")]


class GuardedGenerator(LocalGenerator):
    """A `LocalGenerator` that runs this module."""

    module = "support.guarded_service"

    def defaults(self, cache_dir: Path, name: str) -> dict[str, str]:
        tests = Path(__file__).parents[1]
        support = tests / "support"
        path = [
            *(str(support / name) for name in ("sockets", "packages")),
            str(tests),
            os.environ.get("PYTHONPATH", ""),
        ]
        self.sockets_path = cache_dir / f"sockets-{name}"
        return super().defaults(cache_dir, name) | {
            "NPA_COSMOS3_RAY_GUARDRAILS": "true",
            "COSMOS3_TEST_SOCKETS": str(self.sockets_path),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }


def use_doubles() -> None:
    """In this process: a service that starts here takes the doubles. Ray must not be imported here: what is proved is
    proved before it."""
    from support.guarded_service import load_doubles as by_name  # so that workers find it by its module

    from cosmos3_serve.generator import prepare, serve

    deploy_guard = serve._deploy_guard

    def with_doubles(*args: Any) -> bool:
        from cosmos3_serve.generator.guardrails import replica

        replica.guard_application = partial(replica.guard_application, load=by_name)
        return deploy_guard(*args)

    prepare.require_packages = lambda engine: None
    serve._deploy_guard = with_doubles


def main() -> None:
    """As the service's own main."""
    from cosmos3_serve.generator import serve
    from cosmos3_serve.settings import GeneratorSettings

    deploy = serve._deploy

    def announced(*args: Any) -> Any:
        print(MODEL_DEPLOYED, file=sys.stderr, flush=True)
        return deploy(*args)

    use_doubles()
    serve._deploy = announced
    try:
        serve.run_generator(GeneratorSettings.load())
    except Cosmos3Error as refused:
        print(json.dumps(refused.as_problem() | {"ray_imported": "ray" in sys.modules}), file=sys.stderr)
        sys.exit(refused.exit_code)


if __name__ == "__main__":
    main()
