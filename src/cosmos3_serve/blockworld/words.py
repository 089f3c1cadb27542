"""Controlled English about a scene: captions, and questions with their answers.

A caption says every object with its colour and shape, mostly with size, column and depth too, and every event.
Questions are only asked where the scene has one right answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from cosmos3_serve.blockworld.scene import COLOURS, DEPTHS, SHAPES, SIZES, Event, Scene

COUNTS = ("none", "one", "two", "three")
PLACES = ("on the left", "in the centre", "on the right")
STANDS = ("at the front", "at the back")
NOTHING = "nothing"


@dataclass(frozen=True)
class Turn:
    """A question and the one right answer; `kind` groups questions in evaluations."""

    kind: str
    question: str
    answer: str


def name_of(scene: Scene, thing: int) -> str:
    """Such as `red cube`."""
    it = scene.things[thing]
    return f"{COLOURS[it.colour]} {SHAPES[it.shape]}"


# ---- captions -------------------------------------------------------------------------------------------------------


def caption(scene: Scene, rng: random.Random, *, full: bool = False) -> str:
    """One or more sentences. `full`: nothing is left out, and the wording is always the same."""
    order = sorted(range(len(scene.things)), key=lambda i: scene.things[i].column)
    if not full and rng.random() < 0.3:
        rng.shuffle(order)
    if scene.gripper >= 0:
        parts = [phrase(scene, i, rng, full=full) for i in order]
        return f"{_sentence(parts)} The gripper moves the {name_of(scene, scene.gripper)}."
    if len(scene.things) == 1 and len(scene.events) == 1 and not full and rng.random() < 0.5:
        parts = [phrase(scene, 0, rng)]
        return f"{_sentence(parts)[:-1]} {deed(scene, scene.events[0])}."
    said = _sentence([phrase(scene, i, rng, full=full) for i in order])
    story = happens(scene)
    if not scene.events:
        return said
    return f"{said} {story}"


def phrase(scene: Scene, thing: int, rng: random.Random, *, full: bool = False) -> str:
    """Such as `a large red cube on the left at the front`."""
    it = scene.things[thing]
    # How much is said: everything, no depth, or only what the object is.
    said = 0 if full else rng.choices((0, 1, 2, 3), (6, 2, 1, 1))[0]
    words = ["a"]
    if said < 3:
        words.append(SIZES[it.size])
    words += [COLOURS[it.colour], SHAPES[it.shape]]
    if said < 2:
        words.append(PLACES[it.column])
    if said == 0:
        words.append(STANDS[it.depth])
    return " ".join(words)


def _sentence(parts: Sequence[str]) -> str:
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return text[0].upper() + text[1:] + "."


def deed(scene: Scene, event: Event) -> str:
    """What an object does: `slides to the left`, `falls`, `bounces`, `turns`."""
    return (f"slides to the {scene.direction(event)}", "falls", "bounces", "turns")[event.motion]


def happens(scene: Scene) -> str:
    """Every event in its order; `Nothing moves.` where there is none."""
    events = sorted(scene.events, key=lambda e: e.start)
    if not events:
        return "Nothing moves."
    told = [f"the {name_of(scene, e.thing)} {deed(scene, e)}" for e in events]
    if len(told) == 1:
        return told[0][0].upper() + told[0][1:] + "."
    return f"First {told[0]}, then {told[1]}."


# ---- questions ------------------------------------------------------------------------------------------------------


def questions(scene: Scene, rng: random.Random, *, video: bool) -> list[Turn]:
    """All kinds that the scene answers, one of each, in random order and wording."""
    turns = _still(scene, rng, video)
    if video:
        turns += _moving(scene, rng)
    rng.shuffle(turns)
    return turns


def _still(scene: Scene, rng: random.Random, video: bool) -> list[Turn]:
    things = scene.things
    number = len(things)
    turns = [
        Turn("count", rng.choice(("How many objects are there?", "How many objects can be seen?")), COUNTS[number])
    ]
    colour = rng.choice([t.colour for t in things] + [rng.randrange(len(COLOURS))])
    turns.append(
        Turn(
            "count_colour",
            f"How many {COLOURS[colour]} objects are there?",
            COUNTS[sum(t.colour == colour for t in things)],
        )
    )
    for index in rng.sample(range(number), number):
        it = things[index]
        alone_shape = sum(t.shape == it.shape for t in things) == 1
        alone_colour = sum(t.colour == it.colour for t in things) == 1
        thing = SHAPES[it.shape] if alone_shape and rng.random() < 0.5 else name_of(scene, index)
        if alone_shape:
            only = SHAPES[it.shape]
            asked = (f"What colour is the {only}?", f"Which colour has the {only}?")
            turns.append(Turn("colour", rng.choice(asked), COLOURS[it.colour]))
        if alone_colour:
            asked = (f"What shape is the {COLOURS[it.colour]} object?", f"What is the {COLOURS[it.colour]} object?")
            turns.append(Turn("shape", rng.choice(asked), SHAPES[it.shape]))
        if number == 1:
            turns.append(
                Turn("colour", rng.choice(("What colour is the object?", "Which colour is it?")), COLOURS[it.colour])
            )
            turns.append(Turn("shape", "What shape is the object?", SHAPES[it.shape]))
        turns.append(Turn("size", f"Is the {thing} small or large?", SIZES[it.size]))
        event = scene.event_of(index)
        if event is None:
            turns.append(Turn("place", f"Where is the {thing}?", PLACES[it.column]))
            turns.append(Turn("depth", f"Is the {thing} at the front or at the back?", STANDS[it.depth]))
        elif video:
            end = event.to if event.motion == 0 else it.column
            turns.append(Turn("place", f"Where is the {thing} at the end?", PLACES[end]))
            turns.append(Turn("place", f"Where is the {thing} at the start?", PLACES[it.column]))
        break
    if rng.random() < 0.5:
        it = rng.choice(things)
        colour, shape = it.colour, it.shape
    else:
        colour, shape = rng.randrange(len(COLOURS)), rng.randrange(len(SHAPES))
    found = any((t.colour, t.shape) == (colour, shape) for t in things)
    turns.append(Turn("exists", f"Is there a {COLOURS[colour]} {SHAPES[shape]}?", "yes" if found else "no"))
    for column in rng.sample(range(3), 1):
        here = [i for i, t in enumerate(things) if t.column == column]
        if not scene.events:
            turns.append(
                Turn("what_is", f"What is {PLACES[column]}?", f"a {name_of(scene, here[0])}" if here else NOTHING)
            )
    return turns


def _moving(scene: Scene, rng: random.Random) -> list[Turn]:
    events = sorted(scene.events, key=lambda e: e.start)
    movers = [e.thing for e in events]
    turns = []
    if len(events) < 2:
        what = f"the {name_of(scene, movers[0])}" if movers else NOTHING
        turns.append(Turn("what_moves", rng.choice(("What moves?", "Which object moves?")), what))
    else:
        first, second = (name_of(scene, e.thing) for e in events)
        turns.append(Turn("order", "What moves first?", f"the {first}"))
        turns.append(Turn("order", "What moves last?", f"the {second}"))
        one, other = (first, second) if rng.random() < 0.5 else (second, first)
        turns.append(Turn("order", f"Does the {one} move before the {other}?", "yes" if one == first else "no"))
    asked = ("What happens?", "What happens in this video?")
    turns.append(Turn("happens", rng.choice(asked), happens(scene)))
    index = rng.choice(movers) if movers and rng.random() < 0.8 else rng.randrange(len(scene.things))
    thing, event = name_of(scene, index), scene.event_of(index)
    does = deed(scene, event) if event else "stands still"
    turns.append(Turn("does", f"What does the {thing} do?", f"it {does}"))
    motion = -1 if event is None else event.motion
    if motion == 0 and event is not None:
        asked = (f"In which direction does the {thing} slide?", f"In which direction does the {thing} move?")
        turns.append(Turn("direction", rng.choice(asked), f"to the {scene.direction(event)}"))
        side = rng.choice(("left", "right"))
        answer = "yes" if side == scene.direction(event) else "no"
        turns.append(Turn("direction", f"Does the {thing} slide to the {side}?", answer))
    turns.append(Turn("falls", f"Does the {thing} fall?", "yes" if motion == 1 else "no"))
    turns.append(Turn("moves", f"Does the {thing} move?", "yes" if event else "no"))
    return turns


def agrees(said: str, right: str) -> bool:
    """Whether an answer says the right one, but for case and punctuation."""

    def plain(text: str) -> str:
        return " ".join(text.lower().replace(".", " ").split())

    return plain(said) == plain(right)


DESCRIBE = ("Describe the picture.", "What can be seen?")
DESCRIBE_VIDEO = ("Describe the video.", "What can be seen in this video?")


def description(scene: Scene, rng: random.Random, *, video: bool) -> Turn:
    """A request for the full caption."""
    text = caption(scene, rng, full=True)
    if video and not scene.events:
        text = f"{text} {happens(scene)}"
    return Turn("describe", rng.choice(DESCRIBE_VIDEO if video else DESCRIBE), text)


def words() -> str:
    """Text in which every word of the language occurs: what a tokenizer has to know whole."""
    rng = random.Random(0)
    lines: list[str] = []
    from cosmos3_serve.blockworld.scene import sample_grasp, sample_scene

    for _ in range(400):
        scene = sample_scene(rng, moving=True)
        lines += [caption(scene, rng), description(scene, rng, video=True).answer]
        lines += [f"{turn.question} {turn.answer}" for turn in questions(scene, rng, video=True)]
        scene = sample_scene(rng, moving=False)
        lines += [f"{turn.question} {turn.answer}" for turn in questions(scene, rng, video=False)]
    lines.append(caption(sample_grasp(rng), rng))
    lines += [*DESCRIBE, *DESCRIBE_VIDEO, *COUNTS, *DEPTHS]
    return "\n".join(lines)
