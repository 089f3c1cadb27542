"""`image`: can this exact image be pulled, by anybody and with the credentials at hand? A row for each image."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cosmos3_serve.checks.ngc import KEY_ENVS, USER
from cosmos3_serve.checks.registry import DOCKER_HUB, ImageRef, Login, Pull, PullState, ask_manifest
from cosmos3_serve.checks.report import Row, Status
from cosmos3_serve.errors import UsageError

NAME = "image"
IMAGE_ENV = "NPA_TASK_IMAGE"
CONFIG_ENV = "DOCKER_CONFIG"
NGC_HOST = "nvcr.io"
DOCKER_HUB_KEY = "https://index.docker.io/v1/"
MAX_CONFIG_BYTES = 1024 * 1024

_FAILS = frozenset({PullState.DENIED, PullState.NOT_FOUND, PullState.WRONG_DIGEST})
_REMEDIES = {
    PullState.DENIED: "give credentials that may pull it (NGC_API_KEY for nvcr.io, else `docker login`), or publish it",
    PullState.NOT_FOUND: "check registry, repository and digest; a private repository answers so too",
    PullState.WRONG_DIGEST: "do not run it: registry or proxy answers with another image",
    PullState.RATE_LIMITED: "try again later, with credentials",
    PullState.UNKNOWN: "check the network, the proxy and the registry's name",
}


def named_images(given: Sequence[str], environ: Mapping[str, str], *, required: bool) -> tuple[ImageRef, ...]:
    """The images to ask for: those given, else `NPA_TASK_IMAGE`; each once.

    Raises:
        UsageError: one of them has no digest or is no image reference, or none is named although one is `required`.
    """
    texts = [text for text in given if text.strip()] or [environ.get(IMAGE_ENV, "")]
    found = tuple(dict.fromkeys(ImageRef.parse(text) for text in texts if text.strip()))
    if required and not found:
        raise UsageError(
            "the image check was asked for and no image is named",
            remedy=f"give --image registry.example/repository@sha256:…, or set {IMAGE_ENV}",
        )
    return found


def login_for(host: str, environ: Mapping[str, str]) -> Login | None:
    """Credentials for a registry: `NGC_API_KEY` for nvcr.io, else what `docker login` left in config.json.

    Programs that keep credentials (`credHelpers`, `credsStore`) are not run.
    """
    key = next((environ[name].strip() for name in KEY_ENVS if environ.get(name, "").strip()), "")
    if host == NGC_HOST and key:
        return USER, key
    folder = environ.get(CONFIG_ENV, "").strip()
    path = (Path(folder) if folder else Path(environ.get("HOME", "~")).expanduser() / ".docker") / "config.json"
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_CONFIG_BYTES))
        entry = found["auths"][DOCKER_HUB_KEY if host == DOCKER_HUB else host]
        user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        return None
    return (user, password) if colon and user else None


async def check_image(image: ImageRef, environ: Mapping[str, str], *, offline: bool, timeout_s: float) -> Row:
    """PASS if the digest can be pulled, FAIL if it is known that it cannot, WARN where that is not known.

    Asked twice, at the same time: anonymously, and with the credentials for that registry if there are any.
    """
    if offline:
        return Row(NAME, Status.SKIP, f"{image} was not asked for (--offline)")
    login = login_for(image.host, environ)
    anonymous, known = await asyncio.gather(
        ask_manifest(image, None, timeout_s=timeout_s),
        ask_manifest(image, login, timeout_s=timeout_s) if login else _nothing(),
    )
    details = [f"without credentials: {anonymous.detail}"]
    details.append(f"with credentials: {known.detail}" if known else f"no credentials for {image.host} at hand")
    status, summary, remedy = _verdict(image, anonymous, known)
    return Row(NAME, status, summary, remedy, tuple(details))


async def _nothing() -> None:
    return None


def _verdict(image: ImageRef, anonymous: Pull, known: Pull | None) -> tuple[Status, str, str]:
    asked = [pull for pull in (known, anonymous) if pull is not None]
    if wrong := next((pull for pull in asked if pull.state is PullState.WRONG_DIGEST), None):
        return Status.FAIL, f"{image}: {wrong.detail}", _REMEDIES[wrong.state]
    if anonymous.state is PullState.PULLABLE:
        if known is not None and known.state in _FAILS:
            # A runtime that sends these credentials is refused, although the image is public.
            return (
                Status.WARN, f"{image} can be pulled by anybody, but not with the credentials at hand",
                "renew or remove them: whoever sends them is refused",
            )  # fmt: skip
        return Status.PASS, f"{image} can be pulled by anybody", ""
    if known is not None and known.state is PullState.PULLABLE:
        return Status.PASS, f"{image} can be pulled with the credentials at hand alone", ""
    last = known or anonymous
    status = Status.FAIL if last.state in _FAILS else Status.WARN
    words = "cannot be pulled" if status is Status.FAIL else "may be pullable or not"
    return status, f"{image} {words}: {last.detail}", _REMEDIES[last.state]


async def not_named() -> Row:
    """The row where every check was asked for and no image is named."""
    return Row(NAME, Status.SKIP, f"no image is named (--image, {IMAGE_ENV})")
