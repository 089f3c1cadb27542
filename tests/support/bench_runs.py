"""Runs of the benchmark made by hand, for arithmetic that can be checked by eye."""

from cosmos3_serve.bench.records import Request, Run, Workload
from cosmos3_serve.bench.videos import Recipe, Video


def made(pace: list[float], profile: str = "round-robin", **changed: object) -> Run:
    """Two repeats or more of one video with two questions; `pace` seconds a question, by repeat."""
    requests = []
    for repeat, seconds in enumerate(pace):
        for turn in range(2):
            start = repeat * 100 + turn * seconds
            requests.append(
                Request(
                    repeat=repeat,
                    concurrency=1,
                    video="video-00000.mp4",
                    turn=turn,
                    session=None,
                    started=start,
                    first=start + seconds / 2,
                    last=start + seconds,
                    ended=start + seconds,
                    status=200,
                    output_tokens=3,
                )
            )
    work = {"profile": profile, "videos": 1, "questions": 2, "output_tokens": 3, "concurrency": (1,)}
    fields: dict[str, object] = {
        "workload": Workload.model_validate(work | {"repeats": len(pace)}),
        "recipe": Recipe(), "videos": [Video(name="video-00000.mp4", sha256="a" * 64, bytes=1)], "model": "m",
        "server": "s", "weights": "random", "load": "hand", "machine": {}, "started_at": "now", "requests": requests,
    }  # fmt: skip
    return Run.model_validate(fields | changed)
