"""What vLLM's replicas see of a file: OpenCV's pictures, in the interpreter that has OpenCV. Run by path:

python opencv.py OUT.npz FILE…       frames of each video, or the picture, uint8 RGB, and its rate
"""

from __future__ import annotations

import sys


def main() -> None:
    import cv2
    import numpy as np
    from PIL import Image, ImageOps

    out, *paths = sys.argv[1:]
    found = {}
    for number, path in enumerate(paths):
        if path.endswith(".image"):  # vLLM reads pictures with Pillow: upright, on white
            image = ImageOps.exif_transpose(Image.open(path))
            if image.has_transparency_data:
                rgba = image.convert("RGBA")
                image = Image.new("RGB", rgba.size, (255, 255, 255))
                image.paste(rgba, mask=rgba.getchannel("A"))
            found[f"frames{number}"], found[f"fps{number}"] = np.asarray(image.convert("RGB"))[None], 1.0
            continue
        video = cv2.VideoCapture(path)
        frames = []
        while True:
            there, frame = video.read()
            if not there:
                break
            frames.append(frame[:, :, ::-1])
        found[f"frames{number}"] = np.stack(frames) if frames else np.zeros((0, 1, 1, 3), np.uint8)
        found[f"fps{number}"] = video.get(cv2.CAP_PROP_FPS)
    np.savez(out, **found)


if __name__ == "__main__":
    main()
