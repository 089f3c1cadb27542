"""The entitlement probe against a stub Hub: each answer has its own code, and only the Hub's own answer counts."""

from collections.abc import Iterator

import httpx
import pytest
from support.hub import GOOD_TOKEN, OTHER_TOKEN, Repo, StubHub, stub_hub

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.weights.access import AccessState, probe
from cosmos3_serve.weights.assets import GUARDRAIL1, NANO, Asset

FILE = GUARDRAIL1.probe_file


@pytest.fixture
def hub() -> Iterator[StubHub]:
    guardrail = Repo(GUARDRAIL1.revision, {FILE: b"stub, no weights", "README.md": b"card"}, gated=True)
    nano = Repo(NANO.revision, {"README.md": b"card"})
    with stub_hub({GUARDRAIL1.repo: guardrail, NANO.repo: nano}) as stub:
        yield stub


def test_the_pins_are_those_of_the_spec() -> None:
    rows = [(a.repo, a.revision, a.gated, a.probe_file) for a in (NANO, GUARDRAIL1)]
    assert rows == [
        ("nvidia/Cosmos3-Nano", "411f42a8fdfb8c5b2583cb8786e0938f49796eaa", False, ""),
        ("nvidia/Cosmos-Guardrail1", "d6d4bfa899a71454a700907664f3e88f503950cf", True, FILE),
    ]
    assert FILE == "video_content_safety_filter/safety_filter.pt"


def test_granted_by_the_hubs_redirect_which_is_not_followed(hub: StubHub) -> None:
    found = probe(GUARDRAIL1, GOOD_TOKEN, hub.endpoint)
    assert found.granted and found.status == 302
    found.require()
    path = f"/{GUARDRAIL1.repo}/resolve/{GUARDRAIL1.revision}/{FILE}"
    assert hub.asked == [("HEAD", path, f"Bearer {GOOD_TOKEN}")]


def test_a_small_file_is_granted_by_200(hub: StubHub) -> None:
    asset = Asset(GUARDRAIL1.repo, GUARDRAIL1.revision, True, "README.md")
    assert probe(asset, GOOD_TOKEN, hub.endpoint).status == 200


@pytest.mark.parametrize("name", [FILE, "README.md"])
def test_one_byte_is_asked_for_where_head_is_not_allowed(hub: StubHub, name: str) -> None:
    hub.head_allowed = False
    asset = Asset(GUARDRAIL1.repo, GUARDRAIL1.revision, True, name)
    assert probe(asset, GOOD_TOKEN, hub.endpoint).granted
    assert [method for method, _, _ in hub.asked] == ["HEAD", "GET"]
    assert not any(path.startswith("/stub-bytes/") for _, path, _ in hub.asked)


def test_what_is_not_gated_needs_no_token(hub: StubHub) -> None:
    assert probe(NANO, "", hub.endpoint).granted
    assert hub.asked[0][2] is None


@pytest.mark.parametrize(
    ("token", "state", "says"),
    [
        ("", AccessState.TOKEN_MISSING, "set HF_TOKEN"),
        (OTHER_TOKEN, AccessState.DENIED, "agree and access at https://huggingface.co/nvidia/Cosmos-Guardrail1"),
        ("hf_revoked", AccessState.TOKEN_REFUSED, "make a new one"),
        ("hf_with\nbreak", AccessState.TOKEN_REFUSED, "without quotes or line breaks"),
        ("hf_ümlaut", AccessState.TOKEN_REFUSED, "without quotes or line breaks"),
    ],
)
def test_tokens(hub: StubHub, token: str, state: AccessState, says: str) -> None:
    found = probe(GUARDRAIL1, token, hub.endpoint)
    assert found.state is state and says in found.remedy
    assert not token or token not in found.detail + found.remedy + repr(found)
    with pytest.raises(GuardrailsUnavailable) as refused:
        found.require()
    assert (refused.value.stable_code, refused.value.exit_code) == (state.value, 3)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (403, AccessState.DENIED),
        (404, AccessState.NOT_FOUND),
        (429, AccessState.RATE_LIMITED),
        (503, AccessState.HUB_FAILED),
        (200, AccessState.UNEXPECTED),  # no commit header: something else answered
        (418, AccessState.UNEXPECTED),
    ],
)
def test_statuses(hub: StubHub, status: int, state: AccessState) -> None:
    hub.status = status
    found = probe(GUARDRAIL1, GOOD_TOKEN, hub.endpoint)
    assert (found.state, found.status) == (state, status)
    assert found.remedy


def test_a_login_page_is_no_entitlement(hub: StubHub) -> None:
    hub.login_page = True
    assert probe(GUARDRAIL1, GOOD_TOKEN, hub.endpoint).state is AccessState.UNEXPECTED


def test_another_revision_is_no_entitlement(hub: StubHub) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            302, headers={"X-Repo-Commit": "b" * 40, "ETag": '"x"', "Location": "https://cdn.example"}
        )

    found = probe(GUARDRAIL1, GOOD_TOKEN, hub.endpoint, transport=httpx.MockTransport(answer))
    assert found.state is AccessState.UNEXPECTED


def test_nobody_listens(hub: StubHub) -> None:
    found = probe(GUARDRAIL1, GOOD_TOKEN, "http://127.0.0.1:9")
    assert (found.state, found.status) == (AccessState.UNREACHABLE, None)


def test_one_dropped_connection_is_tried_again(hub: StubHub) -> None:
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.method)
        if len(calls) == 1:
            raise httpx.ReadError("cut")
        return httpx.Response(200, headers={"X-Repo-Commit": GUARDRAIL1.revision})

    assert probe(GUARDRAIL1, GOOD_TOKEN, hub.endpoint, transport=httpx.MockTransport(answer)).granted
    assert calls == ["HEAD", "HEAD"]


def test_offline_and_unpinned_ask_nobody(hub: StubHub) -> None:
    assert probe(GUARDRAIL1, GOOD_TOKEN, hub.endpoint, offline=True).state is AccessState.OFFLINE
    for asset in (Asset("a/b", "", True, "x"), Asset("a/b", "c" * 40, True)):
        assert probe(asset, GOOD_TOKEN, hub.endpoint).state is AccessState.UNPINNED
    assert hub.asked == []
