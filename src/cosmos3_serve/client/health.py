"""Ask a service whether it is ready (`cosmos3 ray-health`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.client import load, problem
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.http import Answer, Service
from cosmos3_serve.errors import ContractViolation, Incomplete, Unreachable
from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.settings import TOKEN_ENV

# One answer is one answer, whatever its status; only a refused connection may be tried again by the caller.
ASK = RetryPolicy(attempts=1, statuses=frozenset())


@dataclass(frozen=True, slots=True)
class Health:
    """The readiness report as sent. `check()` raises when it is not ready."""

    answer: Answer

    @property
    def ready(self) -> bool:
        return self.answer.status == 200

    @property
    def report(self) -> dict[str, Any] | None:
        """The body, where it is a JSON object."""
        return problem.parse(self.answer.body) or None

    def check(self) -> dict[str, Any]:
        """The report of a ready service.

        Raises:
            NotReady: with every failing check.
            Cosmos3Error: any other answer, typed.
            ContractViolation: 200 without a JSON object.
        """
        if self.answer.status == 503:
            raise problem.not_ready(self.answer.body)
        if not self.answer.ok:
            raise self.answer.failure()
        if self.report is None:
            raise ContractViolation("GET /ready did not answer with a JSON object")
        return self.report


def ask_health(
    endpoint: str = "",
    *,
    token_env: str = TOKEN_ENV,
    timeout: float = 30,
    environ: Mapping[str, str] | None = None,
) -> Health:
    """One authenticated GET /ready, within `timeout` seconds.

    Raises:
        UsageError: endpoint or token missing or malformed.
        Unreachable: no answer in time.
    """
    environ = os.environ if environ is None else environ
    address, token = load.endpoint_of(endpoint, environ), load.token_of(token_env, environ)

    async def ask() -> Answer:
        async with Service(address, token, Deadline(timeout)) as service:
            return await service.call("GET", "/ready", retry=ASK, read_s=timeout)

    try:
        return Health(asyncio.run(ask()))
    except Incomplete:
        raise Unreachable(f"the service at {address} did not answer within {timeout:g} s") from None
