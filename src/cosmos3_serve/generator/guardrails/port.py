"""RayTextGuard: the text guard behind a Serve handle, and whether it is effective."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError

from cosmos3_serve.generator.guardrails import GUARD, GUARD_APP
from cosmos3_serve.generator.guardrails.gate import GuardLost
from cosmos3_serve.generator.guardrails.text_guard import Texts

ASK_TIMEOUT_S = 10.0
REMEMBERED_S = 5.0


class RayTextGuard:
    """
    Args:
        handle: of the guard's deployment; default: looked up in Serve.
    """

    def __init__(self, handle: Any = None) -> None:
        self._handle = serve.get_deployment_handle(GUARD, app_name=GUARD_APP) if handle is None else handle
        self._names: list[str] = []
        self._asked_at = float("-inf")

    async def names(self) -> Sequence[str]:
        """The loaded checkers; asked again every few seconds, since a replica may have been replaced."""
        if not self._names or time.monotonic() - self._asked_at > REMEMBERED_S:
            self._names = []
            async with asyncio.timeout(ASK_TIMEOUT_S):
                self._names = [str(name) for name in await self._handle.names.remote()]
            self._asked_at = time.monotonic()
        return self._names

    async def check(self, texts: Texts) -> Any:
        """
        Raises:
            GuardLost: the replica ended meanwhile.
        """
        try:
            return await self._handle.check.remote([(field, text) for field, text in texts])
        except (RayActorError, DeploymentUnavailableError) as error:
            self._names = []
            raise GuardLost(type(error).__name__) from error

    async def effective(self) -> tuple[bool, str]:
        """Whether the guard answers with checkers loaded, and the words for it."""
        try:
            names = await self.names()
        except Exception as error:
            return False, f"the text guard does not answer ({type(error).__name__})"
        return bool(names), ", ".join(names) or "the text guard has no checkers"
