"""Rules that cannot work."""

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.reasoner.sessions.policy import AffinityRules


@pytest.mark.parametrize("bad", [{"ttl_s": 0}, {"max_sessions": 0}, {"flush_interval_s": -1}, {"ttl_s": 3.9}])
def test_rules_that_cannot_work_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        AffinityRules(**bad)  # type: ignore[arg-type]
