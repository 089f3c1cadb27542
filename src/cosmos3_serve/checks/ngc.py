"""`ngc`: does NVIDIA's registry take this key? It proves who asks, never that an image may be pulled."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from cosmos3_serve.checks.report import Row, Status
from cosmos3_serve.checks.web import ask
from cosmos3_serve.errors import UsageError

NAME = "ngc"
KEY_ENVS = ("NGC_API_KEY", "NGC_CLI_API_KEY")
ENDPOINT_ENV = "NGC_AUTH_ENDPOINT"
ENDPOINT = "https://nvcr.io/proxy_auth"
PREFIXES = ("nvapi-", "nvapi_")
USER = "$oauthtoken"
# A public repository: the exchange tells about the key and about nothing else.
QUERY = {"account": USER, "service": "ngc", "scope": "repository:nvidia/cuda:pull"}
IDENTITY_ONLY = "identity only: whether an image may be pulled shows when its exact digest is pulled"
# The key was understood, and something else was refused.
NOT_ABOUT_THE_KEY = frozenset({402, 404, 412, 451})


async def check_ngc(environ: Mapping[str, str], *, offline: bool, timeout_s: float) -> Row:
    """WARN without a key or without a clear answer, FAIL for what is no key or is refused, else PASS.

    Raises:
        UsageError: `NGC_AUTH_ENDPOINT` is no http(s) address.
    """
    url = f"{_endpoint(environ.get(ENDPOINT_ENV, ''))}?{urlencode(QUERY)}"
    key = next((environ[name].strip() for name in KEY_ENVS if environ.get(name, "").strip()), "")
    if not key:
        remedy = f"set {KEY_ENVS[0]}; Cosmos3-Nano itself needs none, an image of NVIDIA's registry does"
        return Row(NAME, Status.WARN, f"{KEY_ENVS[0]} is not set", remedy)
    if not key.startswith(PREFIXES):
        return Row(
            NAME, Status.FAIL, "the key in the environment is no NGC key: one begins with nvapi-",
            "make a personal key at NGC and set NGC_API_KEY to it",
        )  # fmt: skip
    if offline:
        return Row(NAME, Status.SKIP, "a key is set; the registry was not asked (--offline)")
    reply = await ask(url, timeout_s=timeout_s, auth=(USER, key))
    if reply.status == 200 and any(isinstance(reply.body.get(name), str) for name in ("token", "access_token")):
        return Row(NAME, Status.PASS, "the registry exchanged this key for a token", details=(IDENTITY_ONLY,))
    if reply.status in (200, 401, 403):
        summary = "the registry gave no token" if reply.status == 200 else f"the key is refused (HTTP {reply.status})"
        return Row(NAME, Status.FAIL, summary, "it is wrong, expired or revoked: make a new one at NGC")
    if reply.status in NOT_ABOUT_THE_KEY:
        return Row(NAME, Status.PASS, "the registry knows this key", details=(f"HTTP {reply.status}: {IDENTITY_ONLY}",))
    trouble = reply.trouble or f"HTTP {reply.status}"
    return Row(NAME, Status.WARN, f"not known: {trouble}", f"check the network, the proxy and {ENDPOINT_ENV}")


def _endpoint(text: str) -> str:
    """Where tokens are had: NVIDIA's registry, else what the variable names (`/token` where it names no path)."""
    text = text.strip().rstrip("/")
    if not text:
        return ENDPOINT
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.username or parts.query)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"{ENDPOINT_ENV} is no http(s) address", remedy="unset it, or write https://host[/path]")
    return text if parts.path else f"{text}/token"
