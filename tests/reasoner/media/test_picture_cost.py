"""Images cost what the real processor made of them."""

from pathlib import Path

import pytest

from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.picture_cost import ImageProcessor, picture_cost

CONFIG = '{"patch_size": 16, "merge_size": 2, "size": {"longest_edge": 16777216, "shortest_edge": 65536}}'
# Width, height -> width, height, tokens, bytes: transformers 5.19's Qwen2VLImageProcessor with the tiny checkpoint's
# preprocessor_config.json, on plain RGB images of these sizes.
MEASURED = [
    (160, 96, 352, 224, 77, 1892352),
    (640, 360, 640, 352, 220, 5406720),
    (1920, 1080, 1920, 1088, 2040, 50135040),
    (24, 24, 256, 256, 64, 1572864),
    (31, 500, 64, 1056, 66, 1622016),
    (10, 10, 256, 256, 64, 1572864),
    (4096, 4096, 4096, 4096, 16384, 402653184),
    (8000, 8000, 4096, 4096, 16384, 402653184),
    (333, 777, 320, 768, 240, 5898240),
    (640, 32, 1152, 64, 72, 1769472),
    (5000, 26, 4992, 32, 156, 3833856),
]


@pytest.mark.parametrize("case", MEASURED, ids=lambda c: f"{c[0]}x{c[1]}")
def test_as_measured_on_the_real_processor(tmp_path: Path, case: tuple[int, ...]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(CONFIG)
    info = MediaInfo("image", "image/png", "png", "png", "RGB", case[0], case[1], 1, 0.0, 0.0, 1)
    cost = picture_cost(info, ImageProcessor.load(tmp_path), {})
    assert (cost.width, cost.height, cost.tokens, cost.patch_bytes) == case[2:]


def test_options_count() -> None:
    info = MediaInfo("image", "image/png", "png", "png", "RGB", 1920, 1080, 1, 0.0, 0.0, 1)
    small = picture_cost(info, ImageProcessor(), {"mm_processor_kwargs": {"images_kwargs": {"max_pixels": 100_000}}})
    assert small.width * small.height <= 100_000
