"""Object keys that have broken others: read from and written under exactly the key that the URI means, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledger_server import LedgerServer
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import Cosmos3Error, ExitCode

BATCH = json.dumps([{"name": "a.b_c-1", "model_mode": "reasoner", "prompt": "p"}]).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    with LedgerServer(tmp_path_factory.mktemp("server"), steps=1) as made:
        yield made


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("a b", "a b"),
        ("a%20b", "a b"),
        ("a+b", "a+b"),
        ("a%2Bb", "a+b"),
        ("a%2Fb", "a/b"),
        ("é/日本", "é/日本"),
        ("%C3%A9/%E6%97%A5", "é/日"),
        ("/lead", "lead"),
        ("a=b&c;d'(e)", "a=b&c;d'(e)"),
    ],
)
def test_keys_mean_what_they_say(s3: LocalS3, server: LedgerServer, written: str, key: str) -> None:
    s3.create_bucket("keys")
    client = boto(s3.environ)
    client.put_object(Bucket="keys", Key=f"{key}/batch.json", Body=BATCH)
    try:
        manifest = submit_batch(
            input_path=f"s3://keys/{written}/batch.json",
            output_path=f"s3://keys/{written}/out/",
            endpoint=server.endpoint,
        )
        request_id = manifest["request_id"]
        assert manifest["published_uri"] == f"s3://keys/{written}/out/"
        names = [
            f"artifacts/{request_id}/a.b_c-1/reasoner_text.txt",
            "provenance.json",
            "request.json",
            "response.json",
        ]
        assert keys_of(s3.environ, "keys", f"{key}/out/") == [f"{key}/out/{name}" for name in names]
    finally:
        for stored in keys_of(s3.environ, "keys"):
            client.delete_object(Bucket="keys", Key=stored)


EMPTY_OR_DOTS = "the key has an empty, '.' or '..' part"
NO_CONTROLS = "cannot be downloaded exactly|the key holds a control character"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("a//b", EMPTY_OR_DOTS),
        ("a/./b", EMPTY_OR_DOTS),
        ("a/../b", EMPTY_OR_DOTS),
        ("a%2F..%2Fb", EMPTY_OR_DOTS),
        ("a\\b", "the key holds a backslash"),
        ("a%5Cb", "the key holds a backslash"),
        ("a?b", "it has a query"),
        ("a#b", "it has a fragment"),
        ("a%00b", NO_CONTROLS),
    ],
)
@pytest.mark.parametrize("side", ["input", "output"])
def test_keys_that_would_become_others_are_refused(
    s3: LocalS3, server: LedgerServer, tmp_path: Path, written: str, reason: str, side: str
) -> None:
    (tmp_path / "batch.json").write_bytes(BATCH)
    before = len(server.log)
    with pytest.raises(Cosmos3Error, match=reason) as caught:
        submit_batch(
            input_path=f"s3://keys/{written}/batch.json" if side == "input" else str(tmp_path / "batch.json"),
            output_path=f"s3://keys/{written}/" if side == "output" else str(tmp_path / "out"),
            endpoint=server.endpoint,
        )
    assert caught.value.exit_code == ExitCode.INPUT
    assert len(server.log) == before


def test_the_bucket_root_may_be_published_to(s3: LocalS3, server: LedgerServer, tmp_path: Path) -> None:
    s3.create_bucket("whole-bucket")
    (tmp_path / "batch.json").write_bytes(BATCH)
    manifest = submit_batch(
        input_path=str(tmp_path / "batch.json"), output_path="s3://whole-bucket", endpoint=server.endpoint
    )
    assert manifest["provenance_uri"] == "s3://whole-bucket/provenance.json"
    assert "provenance.json" in keys_of(s3.environ, "whole-bucket")
