"""Pixel budgets: the two edges that a client sets for its videos or images, however it writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cosmos3_serve.reasoner.media.frame_options import OptionRefused

_EDGES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}


def pixel_edges(places: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, int]:
    """The processor's `size`, as far as it is given.

    An edge of `size` and `min_pixels` or `max_pixels` are the same. A replica lets a flat `size` and a scoped
    `max_pixels` overrule each other by rules of its own, so it gets one of them.

    Args:
        places: paths and what stands there; an earlier place overrules a later one.

    Raises:
        OptionRefused: one place says two things, or the least is more than the most; both are named.
    """
    edges: dict[str, int] = {}
    fields: dict[str, str] = {}
    for edge, name in _EDGES.items():
        for path, options in places:
            size = options.get("size") or {}
            given = {f"{path}.{name}": options.get(name), f"{path}.size.{edge}": size.get(edge)}
            found = {field: value for field, value in given.items() if value is not None}
            if len(set(found.values())) > 1:
                said = " and ".join(f"{field} is {value}" for field, value in found.items())
                raise OptionRefused(tuple(found), said, "send one of them")
            if found:
                fields[edge], edges[edge] = next(iter(found.items()))
                break
    if len(edges) == 2 and edges["shortest_edge"] > edges["longest_edge"]:
        said = " and ".join(f"{fields[edge]} is {value}" for edge, value in edges.items())
        raise OptionRefused(tuple(fields.values()), f"{said}: the least is the larger", "send one of them")
    return edges
