"""A pytest plugin: the CPU seconds of each test file, and of the dearest tests, with all that they start.

    pytest -p support.cpu_seconds tests/…

The wall clock of a busy machine says little. Children count when they were waited for; those of a service that outlive
their parent count only where COSMOS3_CPUACCT names the `cpuacct` folder of a control group that pytest runs in.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

MOST = 40
_tests: dict[str, float] = defaultdict(float)


def spent() -> float:
    """CPU seconds until now."""
    if group := os.environ.get("COSMOS3_CPUACCT"):
        return int((Path(group) / "cpuacct.usage").read_text()) / 1e9
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


_begun = spent()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = spent()
    try:
        return (yield)
    finally:
        _tests[item.nodeid] += spent() - before


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total, files = spent() - _begun, defaultdict(float)
    for test, seconds in _tests.items():
        files[test.partition("::")[0]] += seconds
    terminalreporter.section(f"{total:.0f} CPU seconds, {total - sum(files.values()):.0f} of them outside tests")
    for found in (files, _tests):
        for name, seconds in sorted(found.items(), key=lambda pair: -pair[1])[:MOST]:
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
