"""Credentials that expire: asked of their source, renewed before they end, and said to be missing when they are."""

from __future__ import annotations

import asyncio
import http.server
import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.tls import Tls

from cosmos3_serve.errors import StorageFailure, UsageError
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access

STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>session-{n}</SessionToken>
<SecretAccessKey>secret-{n}</SecretAccessKey><Expiration>{end}</Expiration><AccessKeyId>key-{n}</AccessKeyId>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class World(http.server.ThreadingHTTPServer):
    """S3, a container's credentials endpoint and instance metadata in one, STS behind TLS; short-lived keys in turn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.given, self.seen, self.broken = 0, list[tuple[str, str, str]](), False
        behind = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Sts", (Handler,), {"world": self}))
        self.sts = Tls(folder, behind)  # the client speaks to STS by https only

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    world: World | None = None

    @property
    def at(self) -> World:
        return self.world or self.server  # type: ignore[return-value]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        status, answer = self._answer(self.path + "?" + body)
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    do_PUT = do_POST = do_GET

    def _answer(self, path: str) -> tuple[int, str]:
        if path.startswith("/bucket/"):
            key = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
            self.at.seen.append((key[1] if key else "", self.headers.get("x-amz-security-token", ""), path))
            return 200, ""
        if self.at.broken:
            return 403, "denied"
        if "latest/api/token" in path:
            return 200, "metadata-token"
        if path.rstrip("?").endswith("security-credentials/"):
            return 200, "the-role"
        self.at.given += 1
        n, end = self.at.given, (datetime.now(UTC) + timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
        if "AssumeRoleWithWebIdentity" in path:
            assert "WebIdentityToken=the-service-account" in path and "RoleArn=arn" in path
            return 200, STS.format(n=n, end=end)
        if path.startswith("/v1/credentials"):
            assert self.headers.get("authorization") == "container-token"
        key = {"AccessKeyId": f"key-{n}", "SecretAccessKey": "s", "Token": f"session-{n}", "Expiration": end}
        return 200, json.dumps({**key, "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": end})

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with World(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
        server.sts.close()


def environ(world: World, tmp_path: Path, source: str) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text({"web": "the-service-account"}.get(source, "container-token"))
    return {"AWS_ENDPOINT_URL": world.url, "AWS_REGION": "eu-north1"} | {
        "web": {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/batch",
            "AWS_ENDPOINT_URL_STS": world.sts.url,
            "AWS_CA_BUNDLE": str(world.sts.authority),
        },
        "container": {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{world.url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        },
        "instance": {
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": world.url,
        },
    }[source]


@pytest.mark.parametrize("source", ["web", "container", "instance"])
async def test_credentials_are_asked_of_their_source_and_renewed(world: World, tmp_path: Path, source: str) -> None:
    access = S3Access.from_environ(environ(world, tmp_path, source))
    store = BucketStore("bucket", access)
    await store.put_bytes("one", b"x")
    await asyncio.sleep(0.2)  # the client asks its source at most every tenth of a second
    await store.put_bytes("two", b"x")
    keys = [key for key, *_ in world.seen]
    assert keys[0] == "key-1" and keys[1] != "key-1", "keys that end within the next minutes are not used again"
    assert [token for _, token, _ in world.seen] == [key.replace("key", "session") for key in keys]
    assert "token" not in repr(access) and "arn" not in repr(access)


@pytest.mark.parametrize("source", ["web", "container"])
async def test_a_source_that_refuses_is_named_and_nothing_is_sent(world: World, tmp_path: Path, source: str) -> None:
    world.broken = True
    with pytest.raises(StorageFailure) as caught:
        await BucketStore("bucket", S3Access.from_environ(environ(world, tmp_path, source))).put_bytes("k", b"x")
    assert caught.value.stable_code == "storage_credentials_unavailable" and not caught.value.retryable
    assert "AWS_ROLE_ARN" in caught.value.remedy and world.seen == []


async def test_a_profile_is_read_by_boto3(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "credentials"
    shared.write_text("[team]\naws_access_key_id = key-of-team\naws_secret_access_key = s\naws_session_token = t\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    base = {"AWS_ENDPOINT_URL": world.url, "AWS_SHARED_CREDENTIALS_FILE": str(shared)}
    await BucketStore("bucket", S3Access.from_environ({**base, "AWS_PROFILE": "team"})).put_bytes("k", b"x")
    assert [seen[:2] for seen in world.seen] == [("key-of-team", "t")]
    for profile in ("none", ""):  # no such profile; the shared file has no default one
        with pytest.raises(UsageError) as caught:
            BucketStore("bucket", S3Access.from_environ({**base, "AWS_PROFILE": profile}))
        assert caught.value.stable_code == "s3_profile_unusable"


def test_fixed_keys_win_over_every_other_source(world: World, tmp_path: Path) -> None:
    fixed = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    access = S3Access.from_environ({**environ(world, tmp_path, "web"), "AWS_PROFILE": "team", **fixed})
    assert (access.access_key_id, access.provider, access.profile) == ("k", (), None)


def test_instance_metadata_is_asked_only_where_the_operator_says_so() -> None:
    for value in ("true", "", "1"):
        with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID"):
            S3Access.from_environ({"AWS_ENDPOINT_URL": "https://s3", "AWS_EC2_METADATA_DISABLED": value})
