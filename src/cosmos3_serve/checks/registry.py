"""An image registry, asked for one manifest by digest (OCI distribution API): exists, may be pulled, is what it says.

Only the manifest is asked for, never a layer. A challenge is answered as container runtimes answer it: a bearer token
from the realm that the registry names, or Basic. Credentials go to the registry and its realm, never along a redirect
to another origin, and never in clear text except on loopback.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlencode, urljoin, urlsplit

import httpx

from cosmos3_serve.errors import UsageError

MAX_REDIRECTS = 3
MAX_MANIFEST_BYTES = 4 * 1024 * 1024  # the limit that registries themselves have
MAX_TOKEN_BYTES = 256 * 1024
DOCKER_HUB = "docker.io"
DOCKER_HUB_API = "registry-1.docker.io"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PATH = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r":[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")
_CHALLENGE = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')

Login = tuple[str, str]  # user, password


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image by digest. `host` as written, such as `nvcr.io` or `localhost:5000`; `repository` without it."""

    host: str
    repository: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """`host[:port]/repository[:tag]@sha256:…`; the tag is dropped, no host means Docker Hub.

        Raises:
            UsageError: no digest, or no image reference at all.
        """
        name, at, digest = text.strip().partition("@")
        if not at:
            raise UsageError(
                f"image {text[:200]!r} names no digest: a tag may be another image tomorrow",
                remedy="name it as repository@sha256:<64 hex digits>, the digest that was scanned and validated",
            )
        name = _TAG.sub("", name)
        first, slash, rest = name.partition("/")
        host, path = (first, rest) if slash and _is_host(first) else (DOCKER_HUB, name)
        if host == DOCKER_HUB and "/" not in path:
            path = f"library/{path}"
        if not _DIGEST.fullmatch(digest) or not _PATH.fullmatch(path) or not _HOST.fullmatch(host):
            raise UsageError(
                f"{text[:200]!r} is not an image reference with a digest",
                remedy="write it as registry.example/repository@sha256:<64 lower-case hex digits>",
            )
        return cls(host, path, digest)

    @property
    def url(self) -> str:
        host = DOCKER_HUB_API if self.host == DOCKER_HUB else self.host
        scheme = "http" if _bare(host) in LOOPBACK else "https"  # as container runtimes do
        return f"{scheme}://{host}/v2/{self.repository}/manifests/{self.digest}"

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}@{self.digest}"


def _is_host(word: str) -> bool:
    return "." in word or ":" in word or word == "localhost"


def _bare(host: str) -> str:
    return host.rpartition(":")[0] if re.search(r":\d+$", host) else host


class PullState(StrEnum):
    PULLABLE = "pullable"
    DENIED = "denied"  # 401 or 403: not with these credentials, or not without any
    NOT_FOUND = "not found"
    WRONG_DIGEST = "wrong digest"
    RATE_LIMITED = "rate limited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pull:
    """What came of asking once; `detail` is one sentence without any secret."""

    state: PullState
    detail: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)


class _Trouble(Exception):
    """The exchange cannot go on; becomes a `Pull`."""

    def __init__(self, pull: Pull) -> None:
        super().__init__(pull.detail)
        self.pull = pull


async def ask_manifest(image: ImageRef, login: Login | None, *, timeout_s: float) -> Pull:
    """HEAD the manifest with `login` or anonymously, within `timeout_s` seconds altogether; never raises.

    A registry that leaves the digest out of its answer, or refuses HEAD, is asked for the manifest itself, which is
    hashed.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(timeout=timeout_s, follow_redirects=False, trust_env=True) as client,
        ):
            return await _Exchange(client, image, login).run()
    except _Trouble as trouble:
        return trouble.pull
    except TimeoutError:
        return Pull(PullState.UNKNOWN, f"no answer within {timeout_s:g} s")
    except (UnicodeEncodeError, httpx.LocalProtocolError):
        return Pull(PullState.UNKNOWN, "the credentials hold characters that cannot be sent")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return Pull(PullState.UNKNOWN, f"no answer ({type(error).__name__})")


class _Exchange:
    def __init__(self, client: httpx.AsyncClient, image: ImageRef, login: Login | None) -> None:
        self._client = client
        self._image = image
        self._login = login
        self._authorization = ""

    async def run(self) -> Pull:
        answer = await self._allowed("HEAD")
        declared = answer.headers.get("docker-content-digest", "")
        if answer.status == 405 or (answer.status == 200 and not declared):
            answer = await self._allowed("GET")
            declared = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        return self._judged(answer, declared)

    async def _allowed(self, method: str) -> _Answer:
        """The answer for the manifest; one challenge is answered."""
        answer = await self._manifest(method)
        if answer.status == 401 and not self._authorization:
            await self._authenticate(answer)
            answer = await self._manifest(method)
        return answer

    async def _manifest(self, method: str) -> _Answer:
        """The answer for the manifest, redirects followed; the authorization stays with the first origin."""
        url, authorization = self._image.url, self._authorization
        for _ in range(MAX_REDIRECTS + 1):
            headers = {"Accept": ACCEPT} | ({"Authorization": authorization} if authorization else {})
            answer = await self._send(method, url, headers, MAX_MANIFEST_BYTES)
            target = urljoin(url, answer.headers.get("location", ""))
            if answer.status not in REDIRECTS or not answer.headers.get("location"):
                return answer
            old, new = urlsplit(url), urlsplit(target)
            if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme != "https"):
                raise _Trouble(Pull(PullState.UNKNOWN, "the registry redirects to an address without TLS"))
            if (old.scheme, old.netloc) != (new.scheme, new.netloc):
                authorization = ""
            url = target
        raise _Trouble(Pull(PullState.UNKNOWN, f"more than {MAX_REDIRECTS} redirects"))

    async def _authenticate(self, refused: _Answer) -> None:
        scheme, _, rest = refused.headers.get("www-authenticate", "").strip().partition(" ")
        if scheme.lower() == "basic":
            if self._login is None:
                raise _Trouble(Pull(PullState.DENIED, "the registry asks for credentials", 401))
            self._authorization = _basic(self._login)
        elif scheme.lower() == "bearer":
            self._authorization = f"Bearer {await self._token(rest)}"
        else:
            raise _Trouble(Pull(PullState.DENIED, "refused, without a challenge that could be answered", 401))

    async def _token(self, challenge: str) -> str:
        found = {name.lower(): quoted or bare for name, quoted, bare in _CHALLENGE.findall(challenge)}
        realm = found.get("realm", "")
        parts = urlsplit(realm)
        loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
            raise _Trouble(Pull(PullState.UNKNOWN, "the registry names no https address that gives tokens", 401))
        query = {name: found[name] for name in ("service", "scope") if found.get(name)}
        query.setdefault("scope", f"repository:{self._image.repository}:pull")
        if self._login is not None:
            query["account"] = self._login[0]
        headers = {"Accept": "application/json"}
        if self._login is not None:
            headers["Authorization"] = _basic(self._login)
        url = f"{realm}{'&' if parts.query else '?'}{urlencode(query)}"
        answer = await self._send("GET", url, headers, MAX_TOKEN_BYTES)
        if answer.status in (401, 403):
            who = "these credentials" if self._login is not None else "anonymous users"
            raise _Trouble(Pull(PullState.DENIED, f"the registry gives {who} no token", answer.status))
        if answer.status != 200:
            raise _Trouble(self._passing(answer, "the token service"))
        token = _token_of(answer.body)
        if not token:
            raise _Trouble(Pull(PullState.UNKNOWN, "what answered for a token is not a token service", answer.status))
        return token

    async def _send(self, method: str, url: str, headers: Mapping[str, str], most: int) -> _Answer:
        asked = {"Accept-Encoding": "identity", "User-Agent": "cosmos3-serve", **headers}
        async with self._client.stream(method, url, headers=asked) as response:
            body = bytearray()
            if method != "HEAD":
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > most:
                        raise _Trouble(Pull(PullState.UNKNOWN, "the answer is larger than a manifest may be"))
            return _Answer(response.status_code, response.headers, bytes(body))

    def _judged(self, answer: _Answer, declared: str) -> Pull:
        status = answer.status
        if status == 200:
            if declared != self._image.digest:
                return Pull(PullState.WRONG_DIGEST, "the registry answers with another digest than was asked for", 200)
            return Pull(PullState.PULLABLE, "the registry has exactly this digest", 200)
        if status in (401, 403):
            return Pull(PullState.DENIED, f"refused (HTTP {status})", status)
        if status == 404:
            return Pull(PullState.NOT_FOUND, "the registry has no such digest in this repository (HTTP 404)", status)
        return self._passing(answer, "the registry")

    @staticmethod
    def _passing(answer: _Answer, who: str) -> Pull:
        if answer.status == 429:
            after = answer.headers.get("retry-after", "")
            wait = f", Retry-After {after}" if after.isdigit() else ""
            return Pull(PullState.RATE_LIMITED, f"{who} limits the rate of questions (HTTP 429{wait})", 429)
        return Pull(PullState.UNKNOWN, f"{who} answered HTTP {answer.status}", answer.status)


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode("ascii")


def _token_of(body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict):
        return ""
    token = found.get("token") or found.get("access_token")
    return token if isinstance(token, str) else ""
