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
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosmos3_serve.media.refusal import COMMAND, Refused, broken
from cosmos3_serve.media.sniff import HEAD_BYTES, check_sniffed, sniff
from cosmos3_serve.reasoner.media.examine import examine_video
from cosmos3_serve.reasoner.media.judge import judge_video
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.normalise import normalise
from cosmos3_serve.reasoner.media.picture import examine_image
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder


def probe_file(
    job: dict[str, Any], limits: MediaLimits, decoder: ReplicaDecoder, on_stage: Callable[[str], None]
) -> dict[str, Any]:
    """
    Raises:
        Refused: the content is not let in.
    """
    path = Path(job["path"])
    with path.open("rb") as file:
        sniffed = sniff(file.read(HEAD_BYTES))
    check_sniffed(sniffed, job["kind"])
    if job["kind"] == "image":
        return {"info": examine_image(path, sniffed, limits).as_dict(), "served": None}
    facts = examine_video(path, sniffed, limits)
    info, reasons = judge_video(facts, sniffed.mime, limits, decoder)
    if not reasons:
        return {"info": info.as_dict(), "served": None}
    on_stage("normalise")
    served = normalise(path, Path(job["out"]), facts, info, reasons, limits)
    return {"info": info.as_dict(), "served": served.as_dict()}


def answer(
    job: dict[str, Any],
    limits: MediaLimits,
    decoder: ReplicaDecoder,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """`probe_file`, with every failure as a refusal."""
    try:
        return probe_file(job, limits, decoder, on_stage)
    except Refused as refused:
        return {"refused": refused.as_dict()}
    except MemoryError:
        return {"refused": broken("media_too_complex", "opening the file takes too much memory", COMMAND).as_dict()}
    except OSError as error:
        return {"fault": os.strerror(error.errno) if error.errno else type(error).__name__}
    except Exception as error:  # whatever a decoder's binding trips over is the file's fault, not the request's end
        name = type(error).__name__
        return {"refused": broken("media_corrupt", f"the file cannot be read ({name})", COMMAND).as_dict()}


def _confine(limits: MediaLimits) -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.probe_memory_bytes, limits.probe_memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.max_media_bytes, limits.max_media_bytes))
    with suppress(OSError):
        os.nice(5)


def main() -> None:
    settings = json.loads(sys.argv[1])
    limits = MediaLimits(**settings["limits"])
    decoder = ReplicaDecoder.from_dict(settings["decoder"])
    _confine(limits)
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
