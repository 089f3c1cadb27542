"""A double of the package's module: a face filter that darkens everything, so that a test can see that it ran."""

from pathlib import Path
from typing import Any


def snapshot_download(*args: Any, **kwargs: Any) -> str:
    raise RuntimeError("the double fetches nothing: the product hands it the proved files")


class RetinaFaceFilter:
    def __init__(self, checkpoint_id: str) -> None:
        folder = snapshot_download(checkpoint_id, allow_patterns=["face_blur_filter/Resnet50_Final.pth"])
        assert (Path(folder) / "face_blur_filter/Resnet50_Final.pth").is_file()

    def to(self, device: Any) -> None: ...

    def postprocess(self, frames: Any) -> Any:
        frames[:] = 0
        return frames
