"""Lists of hashes, wherever they were made; a line that is no sum is refused."""

import pytest

from cosmos3_serve.client.recovery.native_hashes import parse_hashes
from cosmos3_serve.errors import ValidationFailed

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize("path", ["r/s/f", "./r/s/f", "/outputs/r/s/f", "copy/r/s/f", "s/f", "./s/f"])
@pytest.mark.parametrize("mark", ["  ", " *"])
def test_paths_are_made_relative_to_the_output_root(path: str, mark: str) -> None:
    assert parse_hashes(f"# made there\n\n{A.upper()}{mark}{path}\n", "r") == {"r/s/f": A}


def test_absolute_lines_about_other_requests_are_left_out() -> None:
    assert parse_hashes(f"{A}  /outputs/other/s/f\n{B}  /outputs/r/s/f", "r") == {"r/s/f": B}


@pytest.mark.parametrize("text", ["nonsense", f"{A[:-1]}  f", f"{A} f", f"{A}  r/f\n{B}  ./r/f"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        parse_hashes(text, "r")
    assert caught.value.stable_code == "hashes_invalid"
