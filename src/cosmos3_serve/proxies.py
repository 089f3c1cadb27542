"""Proxies of the environment (HTTP_PROXY and others) never carry what is meant for this machine, as a token may be."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a URL's host is this machine: localhost, a name below it, or a loopback address."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def direct(url: str) -> dict[str, None]:
    """`mounts` of an httpx client that talks to `url`: no proxy where that is this machine.

    A URL that cannot be parsed has none: the request that uses it names what is wrong.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return {}
    if not is_loopback(host):
        return {}
    return {f"all://[{host}]" if ":" in host else f"all://{host}": None}
