"""What a block-world scene is, and how one is drawn from a seed.

A scene has one to three objects in different columns, and events: what moves when. Positions are fractions of the
picture, time is the progress of the clip from 0 to 1, so a scene fits any size and number of frames.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

COLOURS = ("red", "green", "blue", "yellow", "purple", "cyan")
SHAPES = ("sphere", "cube", "cylinder", "cone")
SIZES = ("small", "large")
COLUMNS = ("left", "centre", "right")
DEPTHS = ("front", "back")
MOTIONS = ("slides", "falls", "bounces", "turns")

COLUMN_X = (0.2, 0.5, 0.8)
BASE_Y = (0.86, 0.67)  # where an object stands, front and back
FALL_HEIGHT, BOUNCE_HEIGHT = 0.4, 0.26  # of the picture's height
JITTER_X, JITTER_Y, JITTER_SIZE = 0.025, 0.015, 0.06
HELD_OUT = 16  # one scene in this many is never trained on


@dataclass(frozen=True)
class Thing:
    """An object. Indexes into the tuples above; the jitters are fractions of the picture or of the object's size."""

    shape: int
    colour: int
    size: int
    column: int
    depth: int
    dx: float = 0.0
    dy: float = 0.0
    scale: float = 1.0
    yaw: float = 0.4

    @property
    def name(self) -> tuple[int, int]:
        return self.colour, self.shape


@dataclass(frozen=True)
class Event:
    """What object `thing` does from progress `start` to `end`; a slide ends in column `to`."""

    thing: int
    motion: int
    start: float = 0.0
    end: float = 1.0
    to: int = 0


@dataclass(frozen=True)
class Scene:
    """`wall` and `floor` are grey levels with a tint, 0..1; `gripper` holds the object of that index, -1 for none."""

    things: tuple[Thing, ...]
    events: tuple[Event, ...] = ()
    wall: tuple[float, float, float] = (0.85, 0.86, 0.88)
    floor: tuple[float, float, float] = (0.62, 0.6, 0.58)
    gripper: int = -1

    @property
    def key(self) -> str:
        """What the scene shows, without its jitters."""
        things = sorted((t.column, t.depth, t.size, t.colour, t.shape) for t in self.things)
        events = sorted((e.start, self.things[e.thing].name, e.motion, e.to) for e in self.events)
        return repr((things, events, self.gripper))

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.key.encode()) % HELD_OUT == 0

    def event_of(self, thing: int) -> Event | None:
        return next((event for event in self.events if event.thing == thing), None)

    def direction(self, event: Event) -> str:
        """left or right, of a slide."""
        return "left" if event.to < self.things[event.thing].column else "right"


def sample_scene(rng: random.Random, *, moving: bool, held_out: bool | None = None) -> Scene:
    """A random scene; `moving` scenes may have events. `held_out`: only scenes kept from training, or only others."""
    while True:
        scene = _sample(rng, moving)
        if held_out is None or scene.held_out == held_out:
            return scene


def sample_grasp(rng: random.Random, *, held_out: bool | None = None) -> Scene:
    """A scene whose gripper holds an object; where it goes is decided by actions."""
    while True:
        scene = _sample(rng, False)
        scene = Scene(scene.things[:2], (), scene.wall, scene.floor, rng.randrange(len(scene.things[:2])))
        if held_out is None or scene.held_out == held_out:
            return scene


def _sample(rng: random.Random, moving: bool) -> Scene:
    count = rng.choices((1, 2, 3), (4, 4, 2) if moving else (3, 4, 3))[0]
    columns = rng.sample(range(3), count)
    things: list[Thing] = []
    names: set[tuple[int, int]] = set()
    for column in columns:
        while True:
            name = rng.randrange(len(COLOURS)), rng.randrange(len(SHAPES))
            if name not in names:
                break
        names.add(name)
        things.append(
            Thing(
                shape=name[1], colour=name[0], size=rng.randrange(2), column=column, depth=rng.randrange(2),
                dx=rng.uniform(-JITTER_X, JITTER_X), dy=rng.uniform(-JITTER_Y, JITTER_Y),
                scale=1 + rng.uniform(-JITTER_SIZE, JITTER_SIZE), yaw=rng.uniform(0.25, 0.6),
            )
        )  # fmt: skip
    grey, ground = rng.uniform(0.8, 0.93), rng.uniform(0.55, 0.68)
    wall = (grey, grey + rng.uniform(-0.02, 0.02), grey + rng.uniform(-0.01, 0.04))
    floor = (ground, ground - rng.uniform(0.0, 0.02), ground - rng.uniform(0.0, 0.04))
    return Scene(tuple(things), _events(rng, things) if moving else (), wall, floor)


def _events(rng: random.Random, things: list[Thing]) -> tuple[Event, ...]:
    if rng.random() < 0.12:
        return ()
    movers = [rng.randrange(len(things))]
    if len(things) > 1 and rng.random() < 0.25:
        movers.append(rng.choice([i for i in range(len(things)) if i != movers[0]]))
    taken = {thing.column for thing in things}
    events = []
    for order, mover in enumerate(movers):
        thing = things[mover]
        ways = [to for to in range(3) if _free(thing.column, to, taken)]
        motions = [1, 2] + ([0, 0, 0] if ways else []) + ([3] if thing.shape == 1 else [])
        motion = rng.choice(motions)
        to = rng.choice(ways) if motion == 0 else 0
        if motion == 0:
            taken.add(to)
        start, end = (0.0, 1.0) if len(movers) == 1 else ((0.0, 0.5), (0.5, 1.0))[order]
        events.append(Event(mover, motion, start, end, to))
    return tuple(events)


def _free(column: int, to: int, taken: set[int]) -> bool:
    """Whether nothing stands in the columns from `column` to `to`."""
    step = 1 if to > column else -1
    return to != column and not any(c in taken for c in range(column + step, to + step, step))
