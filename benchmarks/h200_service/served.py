"""The product around an engine of Nano's full size with RANDOM weights, which come from no file.

python served.py                                  the service, as `cosmos3_serve.generator.serve` starts it
python served.py direct ROOT CACHE LIMIT DEVICE   the same engine alone, as `measure.direct`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cosmos3_serve.generator.local import LocalGenerator


class FullSizeGenerator(LocalGenerator):
    module = "served"


def _serve() -> None:
    from cosmos3_serve.generator import serve
    from cosmos3_serve.settings import GeneratorSettings

    deploy = serve._deploy

    def deployed(*args: Any) -> Any:
        # Not before: both import Ray, which reads its environment when it is imported.
        from full_size_replica import FullSizeModel

        from cosmos3_serve.generator.replica import deployment as model

        model.ModelReplica = FullSizeModel  # type: ignore[misc]
        return deploy(*args)

    serve._deploy = deployed
    serve.run_generator(GeneratorSettings.load())


if __name__ == "__main__":
    if sys.argv[1:2] == ["direct"]:
        from full_size_replica import full_size
        from measure import direct

        with full_size():
            direct.serve(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        _serve()
