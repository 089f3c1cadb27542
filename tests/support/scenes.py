"""Files that show a drawn block-world scene, and a service whose pictures are such files."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
from PIL import Image
from support.baseline_server import BaselineServer, Faults

from cosmos3_serve.blockworld import draw
from cosmos3_serve.blockworld.files import decode
from cosmos3_serve.blockworld.scene import Scene


def write_scene(path: Path, scene: Scene, frames: int = 9, size: tuple[int, int] = (320, 192)) -> None:
    """A picture (.jpg) or a clip (.mp4) of a scene; `size` is width and height."""
    if path.suffix == ".jpg":
        Image.fromarray(draw.render(scene, 1, *size)[0]).save(path, quality=95)
        return
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24, options={"crf": "12"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for frame in draw.render(scene, frames, *size):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def scene_bytes(scene: Scene, frames: int) -> bytes:
    """A picture, or with more than one frame a clip."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / ("scene.jpg" if frames == 1 else "scene.mp4")
        write_scene(file, scene, frames)
        return file.read_bytes()


class SceneServer(BaselineServer):
    """A generator of drawn scenes, which says that it has the block-world model.

    Args:
        scenes: sample -> what its picture or clip shows, whatever its prompt says.
    """

    def __init__(self, root: Path, scenes: Mapping[str, Scene]) -> None:
        faults = Faults(announced={"weights": "blockworld"}, edit_response=self._label)
        super().__init__(root, faults=faults)
        self.scenes = scenes

    def _label(self, body: dict[str, Any]) -> None:
        body["weights"] = "blockworld"

    def generate(self, request_id: str, sample: dict[str, Any]) -> dict[str, Any]:
        result = super().generate(request_id, sample)
        for output in result["outputs"]:
            for name in output["files"]:
                file = self.root / name
                width, height = decode(file).shape[2:0:-1]
                write_scene(file, self.scenes[sample["name"]], size=(width, height))
        return result
