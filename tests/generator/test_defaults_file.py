"""The defaults file: read once, refused with its reason, announced by /ready."""

from pathlib import Path

import httpx
import pytest
from support.batches import FakeDesk, make_front

from cosmos3_serve.contract.defaults import parse_custom_defaults
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.generator.defaults_file import MAX_BYTES, read_defaults
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.service.tokens import TokenBook


def test_no_file_is_no_defaults_and_a_file_is_read(tmp_path: Path) -> None:
    assert read_defaults(None) == {}
    (tmp_path / "d.json").write_text('{"text2image": {"num_steps": 9}}')
    assert read_defaults(tmp_path / "d.json") == {"text2image": {"num_steps": 9}}


@pytest.mark.parametrize(
    ("content", "code", "exit_code"),
    [
        (None, "defaults_file", 3),
        (b"not json", "invalid_defaults", 2),
        (b'{"text2image": {"num_steps": NaN}}', "invalid_defaults", 2),
        (b'{"nonsense": {"num_steps": 1}}', "invalid_defaults", 2),
        (b" " * (MAX_BYTES + 1), "invalid_defaults", 2),
    ],
)
def test_what_cannot_be_used_is_refused(content: bytes | None, code: str, exit_code: int, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Cosmos3Error) as refused:
        read_defaults(path)
    assert (refused.value.stable_code, refused.value.exit_code) == (code, exit_code)


@pytest.mark.parametrize("custom", [{}, {"text2image": {"num_steps": 9}}])
async def test_ready_announces_them(custom: dict) -> None:
    front = make_front(FakeDesk(), TokenBook("right-token-123", None))
    front.readiness.add("canary", lambda: (True, ""))
    defaults = parse_custom_defaults(custom) if custom else {}
    front.profile = front.profile.model_copy(update={"custom_defaults": defaults})
    transport = httpx.ASGITransport(app=build_app(front))
    headers = {"Authorization": "Bearer right-token-123"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        ready = (await client.get("/ready")).json()
    assert ready["custom_defaults"] is bool(custom)
    assert (ready["defaults_sha256"] is None) is not bool(custom)
