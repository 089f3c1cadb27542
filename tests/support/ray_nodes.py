"""A Ray cluster of several nodes on this machine, in a process of its own, for services that join one.

Every node is a raylet with processes of its own below it; a GPU of a node is a number to Ray and nothing else. Run as a
script it is that process: it says on one line where the cluster is and which nodes it has, and ends with its stdin.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

TESTS = Path(__file__).parents[1]
MIB = 2**20


class RayNodes:
    """
    Args:
        gpus: GPUs of each node beside the head, which has none.
        environ: of every process of the cluster, and so of what services start there.
    """

    def __init__(self, *gpus: int, environ: Mapping[str, str]) -> None:
        self._gpus = gpus
        self._folder = Path(tempfile.mkdtemp(prefix="rn-"))
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(32))
        # For the cluster, and for whoever joins it.
        self.reach = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        path = os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))
        self._environ = {**os.environ, **environ, **self.reach, "PYTHONPATH": path,
                         "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self.raylets: dict[str, int] = {}  # node id -> process id

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, str(self._folder), json.dumps(self._gpus)]
        self._process = subprocess.Popen(
            command, env=self._environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                self.reach["COSMOS3_RAY_ADDRESS"] = said["address"]
                self.raylets = said["raylets"]
                return self
        self.__exit__()
        raise AssertionError("the cluster did not start")

    def __exit__(self, *_: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        for raylet in self.raylets.values():
            for process in self._tree(raylet):
                process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            for process in self._tree(self._process.pid):
                process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def freeze(self, node: str) -> None:
        """As if the machine were gone: it answers nothing, and closes nothing."""
        for process in self._tree(self.raylets[node]):
            process.send_signal(signal.SIGSTOP)

    def kill(self, node: str) -> None:
        """Every process of a node ends at once."""
        for process in self._tree(self.raylets[node]):
            process.kill()

    def node_of(self, pid: int) -> str:
        """The node below which a process runs."""
        parents = {process.pid for process in psutil.Process(pid).parents()}
        return next(node for node, raylet in self.raylets.items() if raylet in parents)

    @staticmethod
    def _tree(pid: int) -> list[psutil.Process]:
        try:
            top = psutil.Process(pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def main(folder: str, gpus: list[int]) -> None:
    from ray import _private
    from ray.cluster_utils import Cluster

    from cosmos3_serve.service.ray_helpers import left_out

    _private.utils.write_ray_address = lambda *_, **__: None  # the machine's own, for whoever joins `auto`
    small = {"object_store_memory": 100 * MIB, "include_dashboard": False, "temp_dir": folder}
    with left_out():
        cluster = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 4})
        for number in gpus:
            cluster.add_node(**small, num_cpus=4, num_gpus=number)
    nodes = [cluster.head_node, *cluster.worker_nodes]
    raylets = {node.node_id: node.all_processes["raylet"][0].process.pid for node in nodes}
    print(json.dumps({"address": cluster.gcs_address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
