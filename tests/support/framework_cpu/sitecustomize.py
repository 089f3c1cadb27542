"""Test support: put this folder on PYTHONPATH and upstream's workers run on a CPU. Nothing happens unless asked for.

The hook waits for upstream's inference module in whichever process imports it, and then applies `cpu_patches`.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

WANTED = "cosmos_framework.inference.inference"


class AfterImport(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != WANTED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            import cpu_patches

            cpu_patches.apply(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("COSMOS3_TEST_SOCKETS"):
    import socket_guard

    socket_guard.watch()
if os.environ.get("COSMOS3_TEST_FRAMEWORK_CPU") == "1":
    sys.meta_path.insert(0, AfterImport())
