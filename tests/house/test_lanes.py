"""The lanes of `make test` know every test that starts services: another one would start a third cluster beside
theirs."""

from collections import Counter
from pathlib import Path

from support import lanes

HERE = Path(__file__)
TESTS = HERE.parents[1]


def test_every_module_that_starts_services_has_its_place() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if path != HERE]
    marked = [path.relative_to(TESTS).as_posix() for path in files if "pytest.mark.e2e" in path.read_text()]
    assert Counter(lanes.ORDER) == Counter(marked)


def test_a_lane_is_one_piece_of_work_and_units_go_by_file() -> None:
    first, second, *_ = lanes.LANES["vllm"]
    assert lanes.scope(f"tests/{first}::test_a[x::y]") == lanes.scope(f"tests/{second}::test_b") == "vllm"
    unit = f"tests/client/{first.rpartition('/')[2]}"  # the name alone says nothing
    assert lanes.scope(f"{unit}::test_c") == unit
    order = sorted([f"{unit}::test_c", f"tests/{second}::test_b", f"tests/{first}::test_a"], key=lanes.rank)
    assert [name.rpartition("_")[2] for name in order] == ["a", "b", "c"]
