"""May this token fetch this file? Asked of the Hub itself, before anything is started or fetched.

A token's presence is no entitlement, and a repository's card can be read by anybody: the question is put for one exact
payload file at the pinned revision. Nothing is downloaded, redirects are not followed, and the token goes to the Hub's
own address only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

import httpx

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.weights.assets import Asset
from cosmos3_serve.weights.hub_env import DEFAULT_ENDPOINT

TIMEOUT_S = 15.0
ATTEMPTS = 2


class AccessState(StrEnum):
    """What came of the question. Each is also the code under which a start is refused."""

    GRANTED = "access_granted"
    UNPINNED = "access_unpinned"
    OFFLINE = "access_offline"
    TOKEN_MISSING = "access_token_missing"
    TOKEN_REFUSED = "access_token_refused"
    DENIED = "access_denied"
    NOT_FOUND = "access_not_found"
    RATE_LIMITED = "access_rate_limited"
    UNREACHABLE = "access_hub_unreachable"
    HUB_FAILED = "access_hub_failed"
    UNEXPECTED = "access_unexpected_answer"


@dataclass(frozen=True, slots=True)
class Access:
    """Args:
    status: HTTP status of the Hub's answer, None where there was none.
    """

    asset: Asset
    state: AccessState
    detail: str
    remedy: str = ""
    status: int | None = None

    @property
    def granted(self) -> bool:
        return self.state is AccessState.GRANTED

    def require(self) -> None:
        """
        Raises:
            GuardrailsUnavailable: not granted; the code is the state.
        """
        if not self.granted:
            raise GuardrailsUnavailable(self.detail, code=self.state.value, remedy=self.remedy)


def probe(
    asset: Asset,
    token: str,
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    offline: bool = False,
    timeout_s: float = TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> Access:
    """Ask the Hub at `endpoint` whether `token` (empty: none) may fetch the asset. Blocks, at most about twice
    `timeout_s`; never raises for what the Hub or the network does.

    HEAD of the probe file at the pinned revision; where HEAD is not allowed (405), GET of its first byte. An answer
    counts only if it carries the Hub's own commit header for that revision: a proxy's login page does not.
    """
    if not asset.revision or (asset.gated and not asset.probe_file):
        return Access(
            asset, AccessState.UNPINNED, f"{asset.repo} has no pinned revision with a payload file to ask for",
            "name the revision (40 hex) that you reviewed",
        )  # fmt: skip
    if offline:
        return Access(
            asset, AccessState.OFFLINE, f"HF_HUB_OFFLINE is set: access to {asset.repo} cannot be asked for",
            "unset HF_HUB_OFFLINE for this check",
        )  # fmt: skip
    if asset.gated and not token:
        return Access(
            asset, AccessState.TOKEN_MISSING, f"{asset.repo} is gated and there is no HF_TOKEN",
            f"accept the licence at {asset.terms} and set HF_TOKEN to a token of that account",
        )  # fmt: skip
    return _ask(asset, token, endpoint.rstrip("/"), timeout_s, transport)


def _ask(asset: Asset, token: str, endpoint: str, timeout_s: float, transport: httpx.BaseTransport | None) -> Access:
    if asset.probe_file:
        url = f"{endpoint}/{asset.repo}/resolve/{asset.revision}/{quote(asset.probe_file)}"
        method = "HEAD"
    else:  # nothing is gated: that the revision exists is all there is to know
        url, method = f"{endpoint}/api/models/{asset.repo}/revision/{asset.revision}", "GET"
    headers = {"Accept-Encoding": "identity", "User-Agent": "cosmos3-serve"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    trouble = "no answer"
    # A token with a line break in it, or a broken address, must end here as well.
    with httpx.Client(timeout=timeout_s, follow_redirects=False, transport=transport) as client:
        for _ in range(ATTEMPTS):
            try:
                status, answer = _send(client, method, url, headers)
                if method == "HEAD" and status == 405:
                    status, answer = _send(client, "GET", url, {**headers, "Range": "bytes=0-0"})
            except (httpx.LocalProtocolError, UnicodeEncodeError, ValueError):
                return Access(
                    asset, AccessState.TOKEN_REFUSED, "HF_TOKEN cannot be sent: it holds characters no token has",
                    "set HF_TOKEN to the token alone, without quotes or line breaks",
                )  # fmt: skip
            except (httpx.HTTPError, OSError) as error:
                trouble = type(error).__name__
                continue
            if status < 500:
                return _judged(asset, bool(token), status, answer)
            trouble = f"HTTP {status}"
    if trouble.startswith("HTTP "):
        return Access(
            asset, AccessState.HUB_FAILED, f"the Hub answered {trouble} for {asset.repo}", "try again later",
            int(trouble.removeprefix("HTTP ")),
        )  # fmt: skip
    return Access(
        asset, AccessState.UNREACHABLE, f"the Hub could not be asked about {asset.repo} ({trouble})",
        "check the network, the proxy and HF_ENDPOINT",
    )  # fmt: skip


def _send(client: httpx.Client, method: str, url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
    """Status and headers; a body is never read, however long it is."""
    with client.stream(method, url, headers=headers) as response:
        return response.status_code, response.headers


def _judged(asset: Asset, sent_token: bool, status: int, headers: Mapping[str, str]) -> Access:
    accept = f"log in with the account of HF_TOKEN, and agree and access at {asset.terms}"
    gated = headers.get("x-error-code") == "GatedRepo"
    if status == 403 or (status == 401 and gated and sent_token):
        return Access(asset, AccessState.DENIED, f"this token has no access to {asset.repo}", accept, status)
    if status == 401:
        if sent_token:
            return Access(
                asset, AccessState.TOKEN_REFUSED, f"the Hub does not accept this token for {asset.repo}",
                "HF_TOKEN is wrong, expired or revoked: make a new one in the account's settings", status,
            )  # fmt: skip
        return Access(asset, AccessState.TOKEN_MISSING, f"{asset.repo} wants a token", accept, status)
    if status == 404:
        return Access(
            asset, AccessState.NOT_FOUND, f"the Hub has no {asset.repo} at {asset.revision[:12]} for this token",
            "check HF_ENDPOINT, and that the account may see the repository", status,
        )  # fmt: skip
    if status == 429:
        return Access(
            asset, AccessState.RATE_LIMITED, f"the Hub limits the rate of questions about {asset.repo}",
            "try again later, with HF_TOKEN set", status,
        )  # fmt: skip
    if _is_hub_answer(asset, status, headers):
        return Access(asset, AccessState.GRANTED, f"{asset.repo} may be fetched", status=status)
    return Access(
        asset, AccessState.UNEXPECTED, f"what answered for {asset.repo} (HTTP {status}) is not the Hub",
        "check HF_ENDPOINT and the proxy: the answer lacks the Hub's commit header, or names another revision", status,
    )  # fmt: skip


def _is_hub_answer(asset: Asset, status: int, headers: Mapping[str, str]) -> bool:
    """2xx, or the Hub's redirect to where the bytes of an artifact lie; a redirect to anywhere else proves nothing."""
    if not asset.probe_file:
        return status == 200 and "application/json" in headers.get("content-type", "")
    if headers.get("x-repo-commit") != asset.revision:
        return False
    if 200 <= status < 300:
        return True
    tagged = headers.get("x-linked-etag") or headers.get("etag")
    return status in (301, 302, 303, 307, 308) and bool(headers.get("location")) and bool(tagged)
