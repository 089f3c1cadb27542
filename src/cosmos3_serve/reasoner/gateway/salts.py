"""Cache salts: what one tenant has asked never shows in another tenant's answers.

An engine caches prompts and media of all its requests. Without a salt a right guess of another tenant's prompt would
show as `cached_tokens`, and the first question about another tenant's video as a hit. So each tenant's prompts are
hashed with a salt of its own (vLLM's `cache_salt`), and its media have names of their own. The operator may let
tenants who trust each other share what is cached.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Any

_LABEL = b"cosmos3 tenant caches"
SALT_FIELD = "cache_salt"


class TenantSalts:
    """
    Args:
        secret: of the cluster: gateways agree on salts, and nobody outside can compute one.
        shared: all tenants have the same caches.
    """

    def __init__(self, secret: bytes, *, shared: bool = False) -> None:
        self._shared = shared
        key = hmac.digest(secret, _LABEL, "sha256")
        self._of = lru_cache(maxsize=1024)(lambda tenant: hmac.digest(key, tenant.encode(), "sha256"))

    def prompt(self, tenant: str) -> str | None:
        """For `cache_salt`; None where tenants share."""
        return None if self._shared else self._of(tenant).hex()

    def media(self, tenant: str, uuid: str) -> str:
        """The name of an item in the engines' caches: 64 hex digits."""
        return uuid if self._shared else hmac.digest(self._of(tenant), uuid.encode(), "sha256").hex()

    def apply(self, body: dict[str, Any], tenant: str) -> None:
        """Set the salt of a request; a client's own is replaced."""
        body.pop(SALT_FIELD, None)
        if (salt := self.prompt(tenant)) is not None:
            body[SALT_FIELD] = salt
