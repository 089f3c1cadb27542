"""The process that opens media, so that a hostile file can crash, hang or fill only this process.

Started as `python -m cosmos3_serve.reasoner.media.worker LIMITS`: one JSON job a line in, one answer a line out. It has
a limit on memory and on file size, opens no network, and is killed by its parent when a file takes too long.

    out  ready
    in   {"path", "kind", "out"}                       out: where a normalised copy may be written
    out  {"stage": "normalise"}                        only where a copy is made: it takes longer
    out  {"info", "served"}, {"refused"} or {"fault"}  served: facts of the copy; fault: ours, not the file's
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosmos3_serve.media.colour import describe
from cosmos3_serve.media.confine import confine
from cosmos3_serve.media.read import sniffed_as, video_record
from cosmos3_serve.media.still import examine_still
from cosmos3_serve.media.video import read_video
from cosmos3_serve.media.worker import guarded
from cosmos3_serve.reasoner.media.judge import judge_image, judge_video
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.normalise import copy_image, copy_video
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder


def probe_file(
    job: dict[str, Any], limits: MediaLimits, decoder: ReplicaDecoder, on_stage: Callable[[str], None]
) -> dict[str, Any]:
    """
    Raises:
        Refused: the content is not let in.
    """
    path, out = Path(job["path"]), Path(job["out"])
    sniffed = sniffed_as(path, job["kind"])
    reading = limits.reading()
    if job["kind"] == "image":
        record = examine_still(path, sniffed, reading)
        info, reasons = judge_image(record)
        if reasons:
            on_stage("normalise")
            return {"info": info.as_dict(), "served": copy_image(path, out, sniffed, reading, reasons).as_dict()}
        return {"info": info.as_dict(), "served": None}
    facts = read_video(path, sniffed, reading)
    record, times = video_record(facts, sniffed, describe(facts.first)), facts.timeline()
    info, reasons = judge_video(facts, record, times, limits, decoder)
    if not reasons:
        return {"info": info.as_dict(), "served": None}
    on_stage("normalise")
    served = copy_video(path, out, sniffed, record, times, reasons, limits)
    return {"info": info.as_dict(), "served": served.as_dict()}


def answer(
    job: dict[str, Any],
    limits: MediaLimits,
    decoder: ReplicaDecoder,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """`probe_file`, with every failure as a refusal."""
    return guarded(lambda asked, _: (probe_file(asked, limits, decoder, on_stage), None), job, lambda _: None)[0]


def main() -> None:
    settings = json.loads(sys.argv[1])
    limits = MediaLimits(**settings["limits"])
    decoder = ReplicaDecoder.from_dict(settings["decoder"])
    confine(memory_bytes=limits.probe_memory_bytes, file_bytes=limits.max_media_bytes)
    # Decoders chat on stdout and stderr; the answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import av

    av.logging.set_level(av.logging.PANIC)

    def say(text: str) -> None:
        answers.write(text + "\n")
        answers.flush()

    say("ready")
    for line in sys.stdin:
        say(json.dumps(answer(json.loads(line), limits, decoder, lambda stage: say(json.dumps({"stage": stage})))))


def settings_text(limits: MediaLimits, decoder: ReplicaDecoder) -> str:
    """The worker's argument."""
    return json.dumps({"limits": asdict(limits), "decoder": decoder.as_dict()})


if __name__ == "__main__":
    main()
