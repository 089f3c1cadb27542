"""What the environment says about the Hub: which one, with which token, offline or not, cached where.

Read from a mapping, never from huggingface_hub's constants: those are fixed when it is first imported, whatever the
environment says later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import TRUE_WORDS

DEFAULT_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Hub:
    """Args:
    endpoint: without a trailing slash.
    token: empty when there is none; never shown (`repr` hides it).
    home: `HF_HOME`; `cache` the folder of the snapshots.
    """

    endpoint: str
    token: str
    offline: bool
    home: Path
    cache: Path

    def __repr__(self) -> str:
        return f"Hub({self.endpoint}, token={'set' if self.token else 'none'}, offline={self.offline})"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Hub:
        """By huggingface_hub's own rules (source: its reference of environment variables).

        Raises:
            UsageError: `HF_ENDPOINT` is no http(s) address.
        """
        home = _path(environ, "HF_HOME")
        if home is None:
            home = (_path(environ, "XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
        cache = _path(environ, "HF_HUB_CACHE") or _path(environ, "HUGGINGFACE_HUB_CACHE") or home / "hub"
        offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
        return cls(
            endpoint=_endpoint(environ.get("HF_ENDPOINT", "")),
            token=environ.get("HF_TOKEN", "").strip(),
            offline=offline.strip().lower() in TRUE_WORDS,
            home=home,
            cache=cache,
        )


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    value = environ.get(name, "").strip()
    return Path(value).expanduser() if value else None


def _endpoint(text: str) -> str:
    text = text.strip().rstrip("/") or DEFAULT_ENDPOINT
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise UsageError(
            "HF_ENDPOINT is no http(s) address", remedy=f"unset it, or name a Hub such as {DEFAULT_ENDPOINT}"
        )
    return text
