"""A role in place of keys, and authorities of one's own: over TLS, against a real S3 API with its own STS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.web import certificate

from cosmos3_serve.errors import UsageError
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.trial.local_s3 import LocalS3

ROLE = "arn:aws:iam::123456789012:role/cosmos3"
PROGRAM = """
import asyncio, os, sys
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.retry import RetryPolicy

async def main():
    store = BucketStore(sys.argv[1], S3Access.from_environ(), RetryPolicy(attempts=1))
    try:
        await store.put_bytes("folder/key", b"by a role", create=True)
        print((await store.head("folder/key")).size)
    except Cosmos3Error as error:
        print(error.stable_code)

asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # what obstore still does in its threads need not meet the interpreter's end
"""


def in_body(data: bytes) -> bytes:
    """moto looks for an unsigned request's action in its body, obstore writes it into the query; AWS takes both."""
    found = re.match(rb"POST /\?(Action=AssumeRoleWithWebIdentity\S*) ", data)
    if found is None:
        return data
    head = b"POST / HTTP/1.1\r\nHost: sts.amazonaws.com\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(found[1]), found[1])


@contextlib.contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[tuple[int, list[bytes]]]:
    """A port that speaks TLS and passes the bytes on; and the first line of each request."""
    asked: list[bytes] = []
    loop, started = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: list[bytes] | None) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if kept is not None:
                    kept.append(data.partition(b"\r\n")[0])
                    data = in_body(data)
                writer.write(data)
                await writer.drain()
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed(reader, forth, asked), passed(behind, writer, None))

    async def start() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(start()), loop.run_forever()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield ports[0], asked
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def run(bucket: str, **environ: str) -> str:
    """What the program says with these variables and no other of AWS'."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SSL_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, bucket], env={**kept, **environ}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_role_writes_over_tls_that_ones_own_authority_signed(s3_server: LocalS3, tmp_path: Path) -> None:
    s3_server.create_bucket("by-role")
    server, _ = certificate(tmp_path, "localhost")
    (tmp_path / "token").write_text("a.service.account-token")
    port = int(s3_server.endpoint.rpartition(":")[2])
    with tls_in_front_of(port, server) as (tls, asked):
        variables = {
            "AWS_ENDPOINT_URL": f"https://localhost:{tls}",
            "AWS_ENDPOINT_URL_STS": f"https://localhost:{tls}",
            "AWS_ROLE_ARN": ROLE,
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        }
        assert run("by-role", SSL_CERT_FILE=str(tmp_path / "server.pem"), **variables) == "9"
        assert any(b"Action=AssumeRoleWithWebIdentity" in line for line in asked)
        assert any(line.startswith(b"PUT /by-role/folder/key") for line in asked)
        # Without the authority nothing is sent.
        asked.clear()
        assert run("by-role", **variables) == "storage_certificate_untrusted" and not asked


WHOLE = {
    "AWS_ENDPOINT_URL": "https://s3.example", "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
}  # fmt: skip


def test_a_role_is_taken_where_there_are_no_keys() -> None:
    access = S3Access.from_environ(WHOLE | {"AWS_REGION": "eu-north-1"})
    assert access.region == "eu-north-1" and dict(access.provider) == {
        "aws_role_arn": ROLE, "aws_web_identity_token_file": "/run/token", "aws_role_session_name": "cosmos3-serve",
    }  # fmt: skip
    with_keys = WHOLE | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert S3Access.from_environ(with_keys).provider == ()


@pytest.mark.parametrize("missing", ["AWS_ENDPOINT_URL", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_half_a_role_is_no_credential(missing: str) -> None:
    with pytest.raises(UsageError) as refused:
        S3Access.from_environ({k: v for k, v in WHOLE.items() if k != missing})
    assert refused.value.stable_code == "s3_not_configured"
