"""Requests to a running service, as a client on the same machine would make them."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from measure.result import demand

from cosmos3_serve.generator.local import LocalGenerator


def client(service: LocalGenerator) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers=service.headers, timeout=600.0, trust_env=False)


def samples(count: int, prefix: str = "s", **fields: Any) -> list[dict[str, Any]]:
    """Samples of one shape, all different."""
    return [{"name": f"{prefix}{i}", "prompt": f"a red ball, take {i}", "seed": i, **fields} for i in range(count)]


def post(http: httpx.Client, body: list[dict[str, Any]]) -> str:
    """Submit asynchronously; the batch's path."""
    answer = http.post("/v1/batches", json={"samples": body}, headers={"Prefer": "respond-async"})
    demand(answer.status_code == 202, f"a batch was not accepted: HTTP {answer.status_code} {answer.text[:200]}")
    return str(answer.headers["location"])


def wait(http: httpx.Client, place: str) -> None:
    """Follow a batch's events until its end."""
    with http.stream("GET", f"{place}/events") as stream:
        ended = any(line == "event: end" for line in stream.iter_lines())
    demand(ended, "the events of a batch broke off")


def response(http: httpx.Client, place: str, count: int) -> dict[str, Any]:
    """The response of an ended batch, after everything in it was found to be there and successful."""
    answer = http.get(f"{place}/response")
    demand(answer.status_code == 200, f"no response: HTTP {answer.status_code}")
    body: dict[str, Any] = answer.json()
    statuses = [output["status"] for output in body["outputs"]]
    demand(statuses == ["success"] * count, f"not all samples succeeded: {statuses}")
    demand(len(body["artifacts"]) == count, f"{len(body['artifacts'])} artifacts for {count} samples")
    return body


def burst(service: LocalGenerator, offsets: list[float], **fields: Any) -> None:
    """One client each with one sample, starting at the given seconds; every one must succeed."""
    began = time.monotonic()

    def one(i: int) -> int:
        with client(service) as http:
            time.sleep(max(0.0, began + offsets[i] - time.monotonic()))
            body = samples(1, f"p{i}-", **fields)
            answer = http.post("/v1/batches", json={"samples": body})
            good = answer.status_code == 200 and answer.json()["outputs"][0]["status"] == "success"
            return answer.status_code if not good else 0

    with ThreadPoolExecutor(len(offsets)) as pool:
        bad = [code for code in pool.map(one, range(len(offsets))) if code]
    demand(not bad, f"requests of the burst failed: {bad}")


class Sizes:
    """The batch size histograms of the service; `since` is what came after an earlier look."""

    def __init__(self, http: httpx.Client) -> None:
        pattern = r'cosmos3_generator_(\w+_batch_size)_bucket\{le="([0-9.]+)"\} ([0-9.]+)'
        self._found: dict[str, dict[float, float]] = {}
        for name, bound, count in re.findall(pattern, http.get("/metrics").text):
            self._found.setdefault(name, {})[float(bound)] = float(count)

    def since(self, earlier: Sizes, name: str) -> dict[int, int]:
        """Batch size to how many batches had it."""
        found, below = {}, 0
        for bound, count in self._found[name].items():
            here = int(count - earlier._found[name][bound])
            if here > below:
                found[int(bound)] = here - below
            below = here
        return found


def shown(sizes: dict[int, int]) -> str:
    return ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items(), reverse=True))


def as_json(sizes: dict[int, int]) -> dict[str, int]:
    return {json.dumps(size): count for size, count in sizes.items()}
