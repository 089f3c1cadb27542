"""Windows: what may lie in the spool at once (the rest of the delivery is tested through the whole client)."""

from __future__ import annotations

import pytest

from cosmos3_serve.client.deliver import windows
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import LimitExceeded


def artifacts(*sizes: int) -> list[Artifact]:
    return [Artifact(sample="a", path=f"r/a/f{i}", bytes=size, sha256="0" * 64) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], 10, []),
        ([3, 3, 3], 10, [[3, 3, 3]]),
        ([5, 5, 1], 10, [[5, 5], [1]]),
        ([10, 1, 10], 10, [[10], [1], [10]]),
        ([6, 6, 6], 10, [[6], [6], [6]]),
    ],
)
def test_windows_fit_and_keep_the_order(sizes: list[int], limit: int, expected: list[list[int]]) -> None:
    assert [[a.bytes for a in window] for window in windows(artifacts(*sizes), limit)] == expected


def test_one_file_larger_than_the_spool_names_both_numbers() -> None:
    with pytest.raises(LimitExceeded, match=r"11 bytes.* 10") as caught:
        list(windows(artifacts(3, 11), 10))
    assert "--spool-bytes" in caught.value.remedy
