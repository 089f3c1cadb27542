"""Whether a picture or clip shows the scene that it was asked for, by `measure` alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cosmos3_serve.blockworld import measure, words
from cosmos3_serve.blockworld.scene import COLOURS, SHAPES, Scene

Pixels = Any  # numpy arrays of uint8


def names(scene: Scene) -> list[tuple[str, str]]:
    """Colour and shape of each object, sorted."""
    return sorted((COLOURS[thing.colour], SHAPES[thing.shape]) for thing in scene.things)


def picture_shows(scene: Scene, picture: Pixels) -> bool:
    """Whether the objects of a picture [height, width, 3] are those of the scene: colours, shapes and count."""
    return sorted(seen.name for seen in measure.objects(picture)) == names(scene)


def obeyed(scene: Scene, tracks: Sequence[measure.Track]) -> bool:
    """Whether every event's object was seen to do what it was asked to."""
    done = {(track.colour, track.shape, track.motion) for track in tracks}
    return all(
        (COLOURS[thing.colour], SHAPES[thing.shape], words.deed(scene, event)) in done
        for event in scene.events
        for thing in [scene.things[event.thing]]
    )


def clip_shows(scene: Scene, frames: Pixels) -> bool:
    """Whether a clip [frames, height, width, 3] shows the scene: every event as asked, or, without events, the objects
    in its first frame."""
    return obeyed(scene, measure.tracks(frames)) if scene.events else picture_shows(scene, frames[0])


def told(picture: Pixels) -> str:
    """The objects of a picture in words, such as `a red cube and a blue cone`."""
    return _listed([f"a {seen.colour} {seen.shape}" for seen in measure.objects(picture)])


def told_of_clip(frames: Pixels) -> str:
    """The objects of a clip and their motions in words; where none can be followed, those of its first frame."""
    tracks = measure.tracks(frames)
    if not tracks:
        return f"{told(frames[0])}, and nothing that can be followed from frame to frame"
    return _listed([f"a {track.colour} {track.shape} that {track.motion}" for track in tracks])


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts) or "no object"
