"""Which URL, host, port and address the gate may ask. Pure: names are resolved elsewhere, every address is judged here.

Without an entry in the allow-list: https on port 443, to addresses of the public internet only. An entry `HOST[:PORT]`
opens http as well, private and loopback addresses behind that very host name, and the port (without one: 80 and 443).
Link-local addresses, where clouds keep their metadata, stay shut even then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urljoin, urlsplit

from cosmos3_serve.errors import UsageError
from cosmos3_serve.media.refusal import Refused, bad

Address = IPv4Address | IPv6Address
ALLOW_FLAG = "--media-allow"
_PORTS = {"https": 443, "http": 80}
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NUMBERISH = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_BAD_CHARACTER = re.compile(r"[\x00-\x20\x7f\\<>\"{}|^`]")

# Listed here rather than asked of `ipaddress`, whose idea of "global" differs between Python's patch releases.
_NEVER = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "169.254.0.0/16",  # link-local; 169.254.169.254 is the metadata service of most clouds
            "168.63.129.16/32",  # Azure's host agent, a public address by its looks
            "192.0.0.0/24",  # Oracle's metadata among others
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/128",
            "fe80::/10",
            "fec0::/10",
            "fd00:ec2::254/128",  # AWS's metadata service over IPv6
            "ff00::/8",
        ),
    )
)
_PRIVATE = tuple(
    map(
        ip_network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "172.16.0.0/12",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "::1/128",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
        ),
    )
)
_ALIBABA_METADATA = ip_address("100.100.100.200")


@dataclass(frozen=True, slots=True)
class Target:
    """One hop: where to connect, and what to ask there.

    Args:
        host: lower-case name or canonical address, without brackets.
        path: as sent, with the query.
        shown: host and path for messages; never the query, which may hold a signature.
        private: whether the allow-list opens private addresses for this host and port.
    """

    scheme: str
    host: str
    port: int
    path: str
    shown: str
    private: bool

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True, slots=True)
class AllowList:
    """The operator's `HOST[:PORT]` entries."""

    entries: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowList:
        """
        Raises:
            UsageError: an entry is no `HOST[:PORT]`.
        """
        found: set[tuple[str, int]] = set()
        for entry in entries:
            try:
                split = urlsplit(f"//{entry.strip()}")
                port = split.port
                host = canonical_host(split.hostname or "")
            except (ValueError, Refused):
                host = ""
                port = None
            if not host or split.path or split.query or split.fragment or "@" in entry:
                raise UsageError(
                    f"{ALLOW_FLAG} {entry!r} is no HOST[:PORT]", remedy="write a host name or an address, no scheme"
                )
            found |= {(host, port)} if port else {(host, p) for p in _PORTS.values()}
        return cls(frozenset(found))

    def allows(self, host: str, port: int) -> bool:
        return (host, port) in self.entries


def parse_target(url: str, allow: AllowList, *, base: Target | None = None, max_chars: int = 8192) -> Target:
    """Judge a URL, or (with `base`) where a redirect leads.

    Raises:
        Refused: 400 `media_url_invalid` or `media_url_refused`.
    """
    if base is not None:
        url = urljoin(base.url, url)
    if len(url) > max_chars:
        raise bad("media_url_invalid", f"the URL is longer than {max_chars} characters", "upload the file instead")
    if _BAD_CHARACTER.search(url):
        raise bad("media_url_invalid", "the URL holds a blank, a backslash or a control character", "percent-encode it")
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise bad("media_url_invalid", "the URL cannot be read") from None
    scheme = split.scheme.lower()
    if scheme not in _PORTS:
        raise bad("media_url_refused", f"the URL leads to the scheme {scheme[:20]!a}", "use https://")
    if "@" in split.netloc:
        raise bad("media_url_refused", "the URL names a user", "leave out user and password")
    host = canonical_host(split.hostname or "")
    port = _PORTS[scheme] if port is None else port
    listed = allow.allows(host, port)
    path = quote(split.path or "/", safe="/%:@!$&'()*+,;=~-._[]")
    shown = f"{host}{path[:200]}"
    remedy = f"the operator can allow it with {ALLOW_FLAG} {host}:{port}"
    if scheme == "http" and not listed:
        raise bad("media_url_refused", f"http is refused for {shown}", f"use https, or {remedy}")
    if port != _PORTS["https"] and not listed:
        raise bad("media_url_refused", f"port {port} is refused for {shown}", remedy)
    query = quote(split.query, safe="/%:@!$&'()*+,;=~-._?[]")
    return Target(scheme, host, port, f"{path}?{query}" if query else path, shown, listed)


def canonical_host(text: str) -> str:
    """A plain ASCII name or an address in its one canonical spelling.

    Raises:
        Refused: anything else: numbers that some resolvers read as addresses (2130706433, 0x7f.1, 127.1), names of
            other alphabets, empty labels.
    """
    host = text.lower()
    bare = host.removesuffix(".")
    try:
        return str(ip_address(bare.partition("%")[0] if "%" in bare else bare)) if "%" not in bare else _no_host()
    except ValueError:
        pass
    labels = bare.split(".")
    if len(bare) > 253 or not all(map(_LABEL.match, labels)) or _NUMBERISH.match(labels[-1]):
        _no_host()
    return bare


def _no_host() -> str:
    raise bad(
        "media_url_refused",
        "the URL's host is neither a plain name nor an address in its usual spelling",
        "write other alphabets in punycode (xn--...)",
    )


def check_address(address: Address, target: Target) -> None:
    """
    Raises:
        Refused: 400 `media_url_refused`: the address is not one that this host may lead to.
    """
    for real in _meanings(address):
        kind = _kind(real)
        if kind == "never" or (kind == "private" and not target.private):
            remedy = "use a public address"
            if kind == "private":
                remedy += f", or let the operator allow {ALLOW_FLAG} {target.host}:{target.port}"
            raise bad("media_url_refused", f"{target.shown} leads to an address that may not be asked", remedy)


def _kind(address: Address) -> str:
    if address == _ALIBABA_METADATA or _in(address, _NEVER):
        return "never"
    if _in(address, _PRIVATE):
        return "private"
    if isinstance(address, IPv6Address) and address not in _GLOBAL6:
        return "never"
    return "public"


def _in(address: Address, networks: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


_GLOBAL6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")


def _meanings(address: Address) -> list[Address]:
    """The address, or the IPv4 address inside it: mapped, compatible, 6to4, Teredo, NAT64."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    if 1 < int(address) <= 0xFFFFFFFF:
        return [IPv4Address(int(address))]
    return [address]
