"""What is left out of an own cluster, without starting one; that it works without is every end-to-end test's."""

from __future__ import annotations

import pytest
from ray._private.node import Node

from cosmos3_serve.service.ray_helpers import LEFT_OUT, left_out


def test_only_what_is_started_within_goes_without_the_helpers() -> None:
    before = {name: getattr(Node, name) for name in LEFT_OUT}
    node = Node.__new__(Node)
    with pytest.raises(RuntimeError), left_out():
        node.start_api_server(include_dashboard=False, raise_on_failure=False)
        node.start_monitor()
        node.start_log_monitor()
        raise RuntimeError("ray.init fails")
    assert {name: getattr(Node, name) for name in LEFT_OUT} == before


def test_another_ray_may_not_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Node, "start_monitor")
    with left_out():
        assert not hasattr(Node, "start_monitor")
    assert not hasattr(Node, "start_monitor")
