"""Tokens: who may call, while the file changes under us."""

import asyncio
from pathlib import Path

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.service import tokens
from cosmos3_serve.service.tokens import TokenBook

OLD, NEW, OTHER = "old-token-000", "new-token-111", "other-token-222"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# people\n\nalice:{OLD}\nalice:{NEW}\nbob:{OTHER}\n")
    return path


def test_names_are_tenants_and_several_are_valid_at_once(file: Path) -> None:
    book = TokenBook("env-token-333", file)
    assert [book.tenant_of(t.encode()) for t in (OLD, NEW, OTHER, "env-token-333")] == [
        "alice",
        "alice",
        "bob",
        "default",
    ]
    assert book.tenant_of(OLD[:-1].encode()) is None
    assert book.tenant_of(b"") is None
    assert book.tenant_of("Schlüssel".encode()) is None


def test_every_token_is_compared_whichever_matches(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    real = tokens.hmac.compare_digest
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda a, b: seen.append(a) or real(a, b))
    book = TokenBook(None, file)
    for presented in (OLD, OTHER, "wrong-token"):
        seen.clear()
        book.tenant_of(presented.encode())
        assert len(seen) == 3 and all(isinstance(a, bytes) and len(a) == 32 for a in seen)


def test_the_book_holds_no_token(file: Path) -> None:
    book = TokenBook(None, file)
    assert OLD not in repr(vars(book)) and OLD.encode() not in repr(book._entries).encode()


@pytest.mark.parametrize("text", ["", "short", "has blank in it", "tab\tinside it", "nicht-ascii-ü"])
def test_what_cannot_be_a_token_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(StartRefused):
        TokenBook(text, None)
    path = tmp_path / "tokens"
    path.write_text(f"alice:{text}\n")
    with pytest.raises(StartRefused):
        TokenBook(None, path)


@pytest.mark.parametrize(
    "content",
    [b"", b"# only a comment\n", b"no colon here\n", b":token-without-name\n", b"a b:token-token\n", b"\xff\xfe\n",
     b"alice:same-token-1\nbob:same-token-1\n", b"alice:" + b"x" * (1024 * 1024)],
)  # fmt: skip
def test_a_file_that_says_nothing_clear_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(StartRefused) as refused:
        TokenBook(None, path)
    assert refused.value.stable_code == "token_invalid"


def test_nothing_configured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused) as refused:
        TokenBook.from_environ({"NPA_COSMOS3_RAY_TOKEN": ""})
    assert refused.value.stable_code == "token_missing"
    with pytest.raises(StartRefused):
        TokenBook.from_environ({"NPA_COSMOS3_RAY_TOKEN_FILE": str(tmp_path / "absent")})


async def test_a_changed_file_is_read_again_but_looked_at_once_a_second(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks = Clock(), []
    book = TokenBook(None, file, clock=clock)
    real = tokens._stamp_of
    monkeypatch.setattr(tokens, "_stamp_of", lambda path: looks.append(path) or real(path))
    file.write_text(f"carol:{NEW}x\n")
    await asyncio.gather(*(book.refresh() for _ in range(50)))
    assert looks == [] and book.tenant_of(OLD.encode()) == "alice"
    clock.now = 1.5
    await asyncio.gather(*(book.refresh() for _ in range(50)))
    assert len(looks) == 2  # one look, one reading
    assert book.tenant_of(f"{NEW}x".encode()) == "carol" and book.tenant_of(OLD.encode()) is None
    clock.now = 3.0
    await book.refresh()
    assert len(looks) == 3  # unchanged: looked at, not read


@pytest.mark.parametrize("broken", [None, b"", b"garbage\n"])
async def test_a_broken_rewrite_keeps_the_earlier_tokens_and_is_shown(broken: bytes | None, file: Path) -> None:
    clock = Clock()
    book = TokenBook(None, file, clock=clock)
    content = file.read_bytes()
    file.unlink() if broken is None else file.write_bytes(broken)
    clock.now = 2.0
    await book.refresh()
    assert book.tenant_of(OLD.encode()) == "alice" and book.problem
    replacement = file.with_name("next")
    replacement.write_bytes(content.replace(OLD.encode(), b"third-token-444"))
    replacement.replace(file)
    clock.now = 4.0
    await book.refresh()
    assert book.problem == "" and book.tenant_of(b"third-token-444") == "alice"
