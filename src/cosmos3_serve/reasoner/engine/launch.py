"""Starts vLLM's server, and each process that it spawns, without collecting garbage that is not there yet.

While modules load and a model is built nearly everything stays, and each collection walks through all of it: of the CPU
of a start on two cores some 5 of 38 s. So collections are rare until vLLM freezes its heap, as it does once it has
started, and usual from then on. What it spawns imports this module as its main one, and no longer the whole server.

`python -m cosmos3_engine MODULE ARGUMENT…` with this file under that name: it is copied beside the engine and run by
vLLM's interpreter, where our package is not installed: standard library only.
"""

import gc
import runpy
import sys
from collections.abc import Callable

RARELY = (100_000, 50, 100)


def collect_rarely(usual: tuple[int, int, int], freeze: Callable[[], None] = gc.freeze) -> None:
    """Until `gc.freeze` is called; then by the thresholds `usual`."""

    def frozen() -> None:
        freeze()
        gc.set_threshold(*usual)
        gc.freeze = freeze

    gc.set_threshold(*RARELY)
    gc.freeze = frozen


def main() -> None:
    module, *arguments = sys.argv[1:]
    sys.argv = [module.rpartition(".")[2] + ".py", *arguments]
    # Not as `sys.modules["__main__"]`: spawned processes would import the server again.
    runpy.run_module(module, run_name="__main__")


if __name__ in ("__main__", "__mp_main__"):
    collect_rarely(gc.get_threshold())
if __name__ == "__main__":
    main()
