"""What the quickstart's pictures show, and what its reasoner says of them, against measures that know no model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from cosmos3_serve.blockworld import measure
from cosmos3_serve.blockworld.files import decode
from cosmos3_serve.trial import demo


def shown(artifacts: Mapping[str, Path]) -> dict[str, bool | None]:
    """For each sample of `artifacts` (name to its picture or clip) whether it shows what was asked; None: no rule."""
    return {name: demo.shows(name, decode(path)) for name, path in artifacts.items()}


def questions(video: Path) -> list[tuple[str, str | None]]:
    """Two questions about a clip, each with its answer as measured in the clip's own frames, None if nothing was found.

    The second is about the object that is seen, whatever the prompt had asked for.
    """
    tracks = measure.tracks(decode(video))
    if not tracks:
        return [("How many objects are there?", None), ("What moves?", None)]
    track = random.Random(0).choice(tracks)
    return [
        ("What happens?", happens(tracks)),
        (f"What does the {track.colour} {track.shape} do?", f"it {track.motion}"),
    ]


def happens(tracks: Sequence[measure.Track]) -> str | None:
    """The answer to "What happens?"; None for two motions, whose order a track does not tell."""
    moving = [track for track in tracks if track.motion != "stands still"]
    if len(moving) > 1:
        return None
    return f"The {moving[0].colour} {moving[0].shape} {moving[0].motion}." if moving else "Nothing moves."
