"""LocalReasoner: a real reasoner service in a process of its own, for tests and trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cosmos3_serve.service.local import LocalService
from cosmos3_serve.settings import REASONER_TOKEN_ENV


class LocalReasoner(LocalService):
    """By default: the tiny checkpoint with random weights on one CPU worker, a fresh token. See `LocalService`."""

    kind = "reasoner"
    module = "cosmos3_serve.reasoner.serve"
    token_env = REASONER_TOKEN_ENV
    timeout_s = 600.0  # an engine takes a minute of CPU to import what it needs

    def defaults(self, cache_dir: Path, name: str) -> dict[str, str]:
        return {
            "COSMOS3_REASONER_HOST": "127.0.0.1",
            "COSMOS3_REASONER_PORT": "0",
            "COSMOS3_REASONER_MODEL": "tiny",
            "COSMOS3_REASONER_STORE_DIR": str(cache_dir / f"media-{name}"),
        }

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """Those that served when the service became ready: id, url, pid and what their engines run with."""
        return list(self.ready["replicas"])
