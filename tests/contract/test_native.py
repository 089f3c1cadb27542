"""Native records are bound to the request in both known layouts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.natives import BATCH, REQUEST, Layout, write_sample

from cosmos3_serve.contract.native import NativeProblem, bind_native


def records(tmp_path: Path, sample: dict[str, Any], layout: Layout) -> tuple[Any, Any]:
    home = write_sample(tmp_path, sample, layout)
    return tuple(json.loads((home / f"sample_{kind}.json").read_text()) for kind in ("args", "outputs"))  # type: ignore[return-value]


@pytest.mark.parametrize("sample", BATCH, ids=lambda s: s["name"])
def test_both_layouts_are_one(tmp_path: Path, sample: dict[str, Any]) -> None:
    framework = bind_native(sample, REQUEST, *records(tmp_path / "f", sample, "framework"))
    diffusers = bind_native(sample, REQUEST, *records(tmp_path / "d", sample, "diffusers"))
    assert framework == diffusers
    assert all(path.startswith(f"{REQUEST}/{sample['name']}/") for path in framework.files)
    assert str(tmp_path) not in json.dumps(framework.outputs)


def test_a_frame_count_may_be_rounded_up_as_the_framework_does(tmp_path: Path) -> None:
    sample = {**BATCH[1], "num_frames": 6}
    assert bind_native(sample, REQUEST, *records(tmp_path, sample, "framework")).args["num_frames"] == 9


def test_what_the_engine_says_has_failed_is_no_mismatch(tmp_path: Path) -> None:
    args, outputs = records(tmp_path, BATCH[0], "framework")
    outputs |= {"status": "error", "message": "out of memory", "outputs": []}
    with pytest.raises(NativeProblem) as caught:
        bind_native(BATCH[0], REQUEST, args, outputs)
    assert caught.value.code == "native_sample_failed"
    assert "out of memory" in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(args=JSON, outputs=JSON)
def test_any_two_json_values_are_bound_or_refused_by_code(args: Any, outputs: Any) -> None:
    with pytest.raises(NativeProblem) as caught:
        bind_native(BATCH[0], REQUEST, args, outputs)
    assert caught.value.code.startswith("native_")


KEYS = ("name", "output_dir", "seed", "num_frames", "model_mode", "edge", "prompt", "resolution")


@given(key=st.sampled_from(KEYS), value=JSON)
def test_any_change_of_a_bound_field_is_refused(key: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    args, outputs = _made(tmp_path_factory)
    changed = {**args, key: value}
    if changed == args or (key == "edge" and value is None):
        return
    with pytest.raises(NativeProblem):
        bind_native(BATCH[0], REQUEST, changed, {**outputs, "args": changed})


_cache: list[Any] = []


def _made(factory: pytest.TempPathFactory) -> Any:
    if not _cache:
        _cache.append(records(factory.mktemp("natives"), BATCH[0], "framework"))
    return _cache[0]
