"""Names: dead name servers cost their tenant's threads, not another's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cosmos3_serve.reasoner.media.names import Names


class Servers:
    """`dead.*` hangs until `over` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over = threading.Event()

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host.startswith("dead"):
            self.over.wait(60)
            raise OSError("nobody answers")
        return ["192.0.2.1"]


async def test_dead_names_of_one_tenant_leave_room_for_anothers_good_one() -> None:
    servers = Servers()
    names = Names(servers, threads=4, name_s=0.2)
    try:
        assert await names.resolve("good.example", 443, "two") == ["192.0.2.1"]
        dead = [asyncio.create_task(names.resolve(f"dead{n}.example", 443, "one")) for n in range(15)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            assert await names.resolve("good.example", 443, "two") == ["192.0.2.1"]
        assert sum(host.startswith("dead") for host in servers.asked) == 3, "one thread is kept for the other tenant"
        for task in dead[:3]:
            with pytest.raises(TimeoutError):
                await task
    finally:
        servers.over.set()
        await asyncio.gather(*dead, return_exceptions=True)
        names.close()


async def test_a_thread_counts_until_it_ends_and_a_dead_name_is_not_asked_for_again() -> None:
    servers = Servers()
    names = Names(servers, threads=1, name_s=0.05)
    try:
        with pytest.raises(TimeoutError):
            await names.resolve("dead.example", 443, "one")
        waits = asyncio.create_task(names.resolve("good.example", 443, "one"))
        await asyncio.sleep(0.1)
        assert not waits.done(), "the only thread still hangs"
        with pytest.raises(OSError, match="a moment ago"):
            await names.resolve("dead.example", 443, "one")
        servers.over.set()
        async with asyncio.timeout(5):
            assert await waits == ["192.0.2.1"]
        assert servers.asked == ["dead.example", "good.example"]
    finally:
        servers.over.set()
        names.close()
