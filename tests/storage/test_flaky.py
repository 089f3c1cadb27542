"""The fault proxy itself: a test that relies on faults must be able to rely on them."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
from support.flaky import Fault, FaultPlan, FlakyProxy
from support.s3 import LocalS3

PUBLIC = {"x-amz-acl": "public-read"}  # these requests are not signed


def test_a_plan_depends_on_nothing_but_its_seed_and_the_request() -> None:
    one, two, other = FaultPlan(1, rate=0.5), FaultPlan(1, rate=0.5), FaultPlan(2, rate=0.5)
    asked = [("GET", f"/b/{n}?x={n}", m) for n in range(50) for m in range(5)]
    assert [one(*a) for a in asked] == [two(*a) for a in reversed(asked)][::-1]
    assert [one(*a) for a in asked] != [other(*a) for a in asked]
    assert one("GET", "/b/1?a", 0) == one("GET", "/b/1?b", 0)


def test_a_plan_keeps_its_rate_its_kinds_and_its_bound() -> None:
    plan = FaultPlan(3, rate=0.4, at_most=2)
    first = Counter(plan("GET", f"/{n}", 0) for n in range(2000))
    assert 0.35 < 1 - first[None] / 2000 < 0.45
    assert set(first) == {None, *plan.kinds}
    for n in range(100):
        assert sum(plan("GET", f"/{n}", nth) is not None for nth in range(50)) <= 2


@pytest.mark.parametrize("fault", [None, *Fault])
def test_each_fault_looks_as_it_says(s3: LocalS3, fault: Fault | None) -> None:
    s3.create_bucket("flaky")
    httpx.put(f"{s3.endpoint}/flaky/k", content=b"x" * 100_000, headers=PUBLIC)
    with FlakyProxy(s3.endpoint, lambda *_: fault, stall_s=5, delay_s=0.01) as proxy:
        url = f"{proxy.url}/flaky/k"
        if fault in (Fault.REFUSE, Fault.LOST_REPLY):
            with pytest.raises(httpx.TransportError):
                httpx.get(url)
        elif fault in (Fault.CUT, Fault.LAST_BYTE):
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.get(url)
        elif fault is Fault.STALL:
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(url, timeout=0.3)
        else:
            answer = httpx.get(url)
            said = {
                Fault.ERROR_500: (500, "InternalError"),
                Fault.ERROR_503: (503, "overloaded"),
                Fault.SLOW_DOWN: (503, "SlowDown"),
                Fault.CONFLICT: (409, "ConditionalRequestConflict"),
                Fault.DENIED: (403, "AccessDenied"),
                Fault.NOT_FOUND: (404, "NoSuchKey"),
                Fault.PRECONDITION: (412, "PreconditionFailed"),
                Fault.ERROR_200: (200, "<Error><Code>InternalError</Code></Error>"),
                Fault.EXPIRED: (400, "ExpiredToken"),
                Fault.SKEWED: (403, "RequestTimeTooSkewed"),
            }
            expected = said.get(fault, (200, "x" * 100_000)) if fault else (200, "x" * 100_000)
            assert answer.status_code == expected[0] and expected[1] in answer.text
        assert proxy.seen == [("GET", "/flaky/k", 0, fault)]


def test_a_lost_reply_was_carried_out_and_a_refused_request_was_not(s3: LocalS3) -> None:
    s3.create_bucket("flaky")
    for fault, status in ((Fault.LOST_REPLY, 200), (Fault.REFUSE, 404)):
        with FlakyProxy(s3.endpoint, lambda *_, fault=fault: fault) as proxy, pytest.raises(httpx.TransportError):
            httpx.put(f"{proxy.url}/flaky/{fault}", content=b"x", headers=PUBLIC)
        assert httpx.get(f"{s3.endpoint}/flaky/{fault}").status_code == status
