"""One manifest by digest, asked of a registry double over HTTP: every challenge, answer and redirect has its state."""

from typing import Any

import pytest
from support.oci_registry import DIGEST, PASSWORD, REPOSITORY, USER, OciRegistry, oci_registry

from cosmos3_serve.checks.registry import ImageRef, Pull, PullState, ask_manifest
from cosmos3_serve.errors import UsageError

LOGIN = (USER, PASSWORD)
WRONG = "sha256:" + "0" * 64


async def ask(registry: OciRegistry, login: tuple[str, str] | None = None, image: str = "") -> Pull:
    return await ask_manifest(ImageRef.parse(image or registry.image), login, timeout_s=5)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (f"nvcr.io/nim/nvidia/x@{DIGEST}", f"https://nvcr.io/v2/nim/nvidia/x/manifests/{DIGEST}"),
        (f"nvcr.io/nim/x:2.1.0@{DIGEST}", f"https://nvcr.io/v2/nim/x/manifests/{DIGEST}"),
        (f"localhost:5000/x@{DIGEST}", f"http://localhost:5000/v2/x/manifests/{DIGEST}"),
        (f"registry.example:5000/a/b@{DIGEST}", f"https://registry.example:5000/v2/a/b/manifests/{DIGEST}"),
        (f"ubuntu@{DIGEST}", f"https://registry-1.docker.io/v2/library/ubuntu/manifests/{DIGEST}"),
        (f"rayproject/ray@{DIGEST}", f"https://registry-1.docker.io/v2/rayproject/ray/manifests/{DIGEST}"),
    ],
)
def test_a_reference_names_one_manifest(text: str, url: str) -> None:
    assert ImageRef.parse(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        "nvcr.io/nim/x:2.1.0",
        "nvcr.io/nim/x",
        "nvcr.io/nim/x@sha256:abc",
        f"nvcr.io/nim/x@{DIGEST.upper()}",
        f"nvcr.io/../x@{DIGEST}",
        f"user@evil.example/x@{DIGEST}",
        f"https://nvcr.io/x@{DIGEST}",
        f"@{DIGEST}",
    ],
)
def test_a_tag_or_half_a_digest_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ImageRef.parse(text)
    assert "sha256" in caught.value.remedy


@pytest.mark.parametrize(
    ("how", "login", "state"),
    [
        ({}, None, PullState.PULLABLE),
        ({"demands": "bearer"}, None, PullState.PULLABLE),
        ({"demands": "bearer", "anonymous": False}, None, PullState.DENIED),
        ({"demands": "bearer", "anonymous": False}, LOGIN, PullState.PULLABLE),
        ({"demands": "bearer"}, (USER, "old"), PullState.DENIED),
        ({"demands": "basic"}, None, PullState.DENIED),
        ({"demands": "basic"}, LOGIN, PullState.PULLABLE),
        ({"demands": "basic"}, (USER, "old"), PullState.DENIED),
        ({"head_allowed": False}, None, PullState.PULLABLE),
        ({"head_allowed": False, "demands": "bearer", "anonymous": False}, LOGIN, PullState.PULLABLE),
        ({"digest": ""}, None, PullState.PULLABLE),
        ({"digest": WRONG}, None, PullState.WRONG_DIGEST),
        ({"answer": (401, {})}, LOGIN, PullState.DENIED),
        ({"answer": (401, {"WWW-Authenticate": "Negotiate x"})}, LOGIN, PullState.DENIED),
        ({"answer": (403, {})}, LOGIN, PullState.DENIED),
        ({"answer": (404, {})}, None, PullState.NOT_FOUND),
        ({"answer": (429, {"Retry-After": "7"})}, None, PullState.RATE_LIMITED),
        ({"answer": (503, {})}, None, PullState.UNKNOWN),
        ({"demands": "bearer", "token_answer": (429, b"")}, None, PullState.RATE_LIMITED),
        ({"demands": "bearer", "token_answer": (200, b"<html>")}, None, PullState.UNKNOWN),
        ({"demands": "bearer", "token_answer": (200, b'{"access_token": "stub-token"}')}, None, PullState.PULLABLE),
        ({"redirect": "http://127.0.0.1:1/v2/x"}, None, PullState.UNKNOWN),
        ({"redirect": "/v2/team/cosmos3-service/manifests/round"}, None, PullState.UNKNOWN),
        ({"redirect": "ftp://127.0.0.1/x"}, None, PullState.UNKNOWN),
    ],
)
async def test_every_answer_has_its_state(how: dict[str, Any], login: tuple[str, str] | None, state: PullState) -> None:
    with oci_registry(**how) as registry:
        found = await ask(registry, login)
        assert found.state is state, found
        assert PASSWORD not in str(found) and "stub-token" not in str(found)
        assert len(registry.asked) <= 6, "a registry is asked a bounded number of times"


async def test_the_digest_is_computed_where_the_registry_declares_none() -> None:
    with oci_registry(digest="", any_digest=True) as registry:
        other = f"{registry.host}/{REPOSITORY}@{WRONG}"
        assert (await ask(registry, image=other)).state is PullState.WRONG_DIGEST
        assert (await ask(registry)).state is PullState.PULLABLE
        assert [method for method, _, _ in registry.asked] == ["HEAD", "GET"] * 2


async def test_the_token_is_asked_for_this_repository_alone() -> None:
    with oci_registry(demands="bearer") as registry:
        await ask(registry)
        assert registry.scopes == [f"repository:{REPOSITORY}:pull"]
        assert [kind for _, _, kind in registry.asked] == ["", "", "Bearer"]


async def test_a_redirect_is_followed_without_credentials() -> None:
    with (
        oci_registry() as mirror,
        oci_registry(demands="basic", redirect=f"http://{mirror.host}/v2/{REPOSITORY}/manifests/{DIGEST}") as first,
    ):
        assert (await ask(first, LOGIN)).state is PullState.PULLABLE
        assert [kind for _, _, kind in first.asked] == ["", "Basic"]
        assert [kind for _, _, kind in mirror.asked] == [""], "the password went to another origin"


async def test_a_password_never_goes_to_a_token_service_without_tls() -> None:
    with oci_registry(demands="bearer", realm="http://tokens.example/token") as registry:
        assert "https" in (await ask(registry, LOGIN)).detail
        assert len(registry.asked) == 1


async def test_no_answer_is_unknown() -> None:
    found = await ask_manifest(ImageRef.parse(f"127.0.0.1:9/x@{DIGEST}"), None, timeout_s=2)
    assert found.state is PullState.UNKNOWN and found.status is None
