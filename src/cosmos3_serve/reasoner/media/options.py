"""Processing options: what changes the tokens made of the same bytes, and what a client may not choose.

A list of what is allowed, since replicas hand everything else on to decoders and processors: a client who sets a patch
size, a decoder or a pixel budget of terabytes picks what dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media.frame_options import EVERY, LEAST_FRAMES, FrameOptions, OptionRefused
from cosmos3_serve.reasoner.media.pixel_options import pixel_edges
from cosmos3_serve.reasoner.media.sampling import LOADER_MAX_FPS, LOADER_MAX_FRAMES

MAX_PIXELS = 25_165_824  # the model's own budget for a whole video
Check = tuple[Callable[[Any], bool], str]


def _whole(least: int, most: int) -> Check:
    return (
        lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most,
        f"a whole number from {least} to {most}",
    )


def _rate(most: int) -> Check:
    return (
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and 0 < v <= most,
        f"a number above 0 and at most {most}",
    )


_NUMBER, _PIXELS = _whole(LEAST_FRAMES, LOADER_MAX_FRAMES), _whole(1, MAX_PIXELS)
_FLAG: Check = (lambda v: isinstance(v, bool), "true or false")
_COLOUR: Check = (
    lambda v: isinstance(v, list) and len(v) == 3 and all(isinstance(c, int) and 0 <= c <= 255 for c in v),
    "three whole numbers from 0 to 255",
)
_FRAMES: Mapping[str, Check] = {
    "fps": _rate(int(LOADER_MAX_FPS)),
    "num_frames": _NUMBER,
    "min_frames": _whole(1, LOADER_MAX_FRAMES),
    "max_frames": _NUMBER,
}
_IO: Mapping[Kind, Mapping[str, Check]] = {
    "video": {
        **_FRAMES,
        "num_frames": (lambda v: v == EVERY or _NUMBER[0](v), f"-1 or {_NUMBER[1]}"),
    },
    "image": {"rgba_background_color": _COLOUR},
}
_CAP = "cap_pixels_per_frame"
_SHARED: Mapping[str, Check] = {"min_pixels": _PIXELS, "max_pixels": _PIXELS}
# What the model family's own examples send. The gateway's choice of frames is what it asks for.
_SAMPLED: Mapping[str, Check] = {
    "do_sample_frames": (lambda v: v is True, "true (every frame is num_frames -1 in media_io_kwargs.video)")
}
_OF_VIDEOS: Mapping[str, Check] = {
    **_FRAMES,
    **_SAMPLED,
    _CAP: _FLAG,
}
_EDGES: Mapping[str, Check] = {"shortest_edge": _PIXELS, "longest_edge": _PIXELS}
_NESTED: Mapping[str, Kind] = {"videos_kwargs": "video", "images_kwargs": "image"}
_PROCESSOR = "mm_processor_kwargs"
_LOADER = "media_io_kwargs"


@dataclass(frozen=True, slots=True)
class ProcessingOptions:
    """
    Args:
        by_kind: per kind `mm_processor_kwargs` and that kind's `media_io_kwargs`, where given, without frame options.
        frames: which frames of its videos; None: the model's own choice.
        only: option -> the kinds of media that it can matter to.
    """

    by_kind: Mapping[Kind, dict[str, Any]]
    frames: FrameOptions | None = None
    only: Mapping[str, tuple[Kind, ...]] = field(default_factory=dict)

    def check_used(self, kinds: Collection[Kind]) -> None:
        """
        Args:
            kinds: of the request's media.

        Raises:
            OptionRefused: an option that nothing in the request heeds.
        """
        for path, heeding in self.only.items():
            if not set(heeding) & set(kinds):
                media = " or ".join(f"{kind}s" for kind in heeding)
                raise OptionRefused((path,), f"{path} is for {media}, and the request has none", "leave it out")


def take_options(body: MutableMapping[str, Any]) -> ProcessingOptions:
    """What the request says about processing, checked. `body` is changed in place: the frame options are taken out, and
    what is left stands in one place each, under `videos_kwargs` and `images_kwargs`.

    Raises:
        OptionRefused: no object, a key that a client may not set, a value out of range, or options that contradict
            each other.
    """
    processor, loader = dict(_object(body, _PROCESSOR)), dict(_object(body, _LOADER))
    only: dict[str, tuple[Kind, ...]] = {}
    _check_all(processor, {**_SHARED, **_OF_VIDEOS}, _PROCESSOR, ("size", *_NESTED))
    for key in processor.keys() - _NESTED.keys():
        only[f"{_PROCESSOR}.{key}"] = ("video",) if key in _OF_VIDEOS else ("video", "image")
    scoped: dict[Kind, Mapping[str, Any]] = {}
    for name, kind in _NESTED.items():
        where = f"{_PROCESSOR}.{name}"
        scoped[kind] = _object(processor, name, _PROCESSOR)
        _check_all(scoped[kind], {**_SHARED, **(_OF_VIDEOS if kind == "video" else {})}, where, ("size",))
        only |= {f"{where}.{key}": (kind,) for key in scoped[kind]}
    for modality in loader:
        if modality not in _IO:
            path = f"{_LOADER}.{modality[:40]}"
            raise OptionRefused((path,), f"{_LOADER} has no {modality[:40]!a}", "use video or image")
    for kind, allowed in _IO.items():
        where = f"{_LOADER}.{kind}"
        loader[kind] = dict(_object(loader, kind, _LOADER))
        _check_all(loader[kind], allowed, where)
        only |= {f"{where}.{key}": (kind,) for key in loader[kind]}
    frames = FrameOptions.resolve(
        (
            (f"{_LOADER}.video", loader["video"]),
            (f"{_PROCESSOR}.videos_kwargs", scoped["video"]),
            (_PROCESSOR, processor),
        )
    )
    sent: dict[str, dict[str, Any]] = {}
    by_kind: dict[Kind, dict[str, Any]] = {}
    loader["video"] = {}  # it holds frame options only
    for name, kind in _NESTED.items():
        edges = pixel_edges(((f"{_PROCESSOR}.{name}", scoped[kind]), (_PROCESSOR, processor)))
        sent[name] = {"size": edges} if edges else {}
        capped = scoped[kind].get(_CAP, processor.get(_CAP))
        if kind == "video" and capped is not None:
            sent[name][_CAP] = capped
        by_kind[kind] = _without_empty({_PROCESSOR: _without_empty({name: sent[name]}), _LOADER: loader[kind]})
    _put(body, _without_empty(sent), _without_empty(loader))
    return ProcessingOptions(by_kind, frames, only)


def put_frames(body: MutableMapping[str, Any], loading: Mapping[str, Any]) -> None:
    """Have a replica use the frames that its loader picks by `loading`, and no others (`body` is changed in place)."""
    if loading:
        processor = _unsampled(_object(body, _PROCESSOR))
        _put(body, processor, {**_object(body, _LOADER), "video": dict(loading)})


def with_frames(options: Mapping[str, Any], loading: Mapping[str, Any]) -> dict[str, Any]:
    """Options of one video, as `ProcessingOptions.by_kind` has them, with these for the loader."""
    if not loading:
        return dict(options)
    return {**options, _PROCESSOR: _unsampled(_object(options, _PROCESSOR)), _LOADER: dict(loading)}


def _unsampled(processor: Mapping[str, Any]) -> dict[str, Any]:
    """Where the loader has kept every frame, the processor would choose among them by numbers of its own."""
    return {**processor, "videos_kwargs": {**_object(processor, "videos_kwargs"), "do_sample_frames": False}}


def _without_empty(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value}


def _put(body: MutableMapping[str, Any], processor: Mapping[str, Any], loader: Mapping[str, Any]) -> None:
    for name, value in ((_PROCESSOR, processor), (_LOADER, loader)):
        body.pop(name, None)
        if value:
            body[name] = value


def _check_all(
    kwargs: Mapping[str, Any], allowed: Mapping[str, Check], where: str, besides: Collection[str] = ()
) -> None:
    for key, value in kwargs.items():
        if key == "size" and key in besides:
            _check_all(_object(kwargs, key, where), _EDGES, f"{where}.size")
        elif key not in besides:
            _check(key, value, allowed, where)


def _check(key: str, value: Any, allowed: Mapping[str, Check], where: str) -> None:
    path = f"{where}.{key[:40]}"
    if key not in allowed:
        raise OptionRefused((path,), f"{path} is not for clients to set", f"use {', '.join(sorted(allowed))}")
    fits, wanted = allowed[key]
    if not fits(value):
        raise OptionRefused((path,), f"{path} is not {wanted}", f"send {wanted}")


def _object(holder: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        path = f"{where}.{key}" if where else key
        raise OptionRefused((path,), f"{path} is not an object")
    return value
