"""TLS between gateways and replicas: one certificate for all who know the secret, and no other is trusted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.gateway import CHAT, about, data_url, serving, soon, text, video, world

from cosmos3_serve.reasoner.gateway.connection import Unreachable
from cosmos3_serve.reasoner.gateway.parts import Payload
from cosmos3_serve.reasoner.gateway.upstream import Upstream
from cosmos3_serve.reasoner.tls import identity_of, pinned


def test_it_is_the_same_wherever_it_is_made_and_another_for_another_secret() -> None:
    code = "import sys; from cosmos3_serve.reasoner.tls import identity_of; print(identity_of('s').certificate)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert there.strip() == identity_of("s").certificate.strip()
    assert identity_of("t").certificate != identity_of("s").certificate
    assert "PRIVATE" not in repr(identity_of("s"))


@pytest.mark.parametrize("stream", [False, True])
async def test_questions_and_videos_go_over_tls(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, replica_tls=True) as here, here.client() as http:
        assert all(stub.url.startswith("https:") for stub in here.replicas)
        answers = [await http.post(CHAT, json=about(data_url(video(n)), stream=stream)) for n in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        ready = (await http.get("/ready")).json()
        assert next(check for check in ready["checks"] if check["name"] == "canary")["ok"]


async def test_who_has_another_certificate_hears_nothing() -> None:
    heard: list[bytes] = []

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.close()

    impostor = await asyncio.start_server(listens, "127.0.0.1", 0, ssl=serving("another secret"))
    port = impostor.sockets[0].getsockname()[1]
    upstream = Upstream("the secret", 5.0, tls=True)
    try:
        for url in (f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port}"):
            with pytest.raises(Unreachable):
                await upstream.ask(url, Payload((b"{}",)))
        with pytest.raises(Unreachable):
            await Upstream("the secret", 5.0).ask(f"https://127.0.0.1:{port}", Payload((b"{}",)))
    finally:
        await upstream.close()
        impostor.close()
    assert not any(heard)


async def test_without_the_certificate_a_replica_is_not_reached(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, replica_tls=True) as here:
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await stranger.get(f"{here.replicas[0].url}/health")
        async with httpx.AsyncClient(verify=pinned(here.secret), trust_env=False) as friend:
            assert (await friend.get(f"{here.replicas[0].url}/health")).status_code == 401, (
                "the secret is asked for too"
            )


async def test_a_replica_that_dies_is_lost_as_over_plain_http(tmp_path: Path) -> None:
    async with world(tmp_path, replica_tls=True) as here, here.client() as http:
        stub = here.replicas[0]
        await stub.stop()
        told = [await http.post(CHAT, json=text(f"q{n}")) for n in range(4)]
        assert {answer.status_code for answer in told} == {200}
        await soon(lambda: stub.running == 0)
