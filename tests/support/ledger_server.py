"""TEST SERVER: the baseline server plus our additive endpoints, kept in memory (docs/contract.md 2.2).

It is not the product's service. It exists so that the client can be tested, killed and resumed without Ray: batches by
id, idempotent POST, `Prefer: respond-async`, events with Last-Event-ID, the response once ended, DELETE.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.baseline_server import BaselineHandler, BaselineServer, Faults

NOW = "2026-11-29T12:00:00Z"
ENDED = ("succeeded", "failed", "cancelled", "expired")


@dataclass
class LedgerFaults(Faults):
    """More ways to misbehave than the baseline's."""

    cut_events: int = 0  # so many event streams end after two events
    no_events: bool = False  # no event endpoint: clients must poll
    lose_posts: int = 0  # accept, then close without an answer
    interrupted_always: set[str] = field(default_factory=set)  # the same, however often it is posted
    interrupted_once: set[str] = field(default_factory=set)  # fails with code `interrupted` until posted again


@dataclass
class Batch:
    """One batch of the ledger; `condition` guards and announces every change."""

    request_id: str
    body: dict[str, Any]
    state: str = "queued"
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    response: bytes = b""
    condition: threading.Condition = field(default_factory=threading.Condition)

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def tell(self, **event: Any) -> None:
        with self.condition:
            defaults = {"type": "sample", "sample": None, "state": None, "step": None, "total_steps": None, "at": NOW}
            self.events.append(defaults | event | {"id": len(self.events) + 1})
            self.condition.notify_all()

    def view(self) -> dict[str, Any]:
        base = f"/v1/batches/{self.request_id}"
        return {
            "request_id": self.request_id,
            "state": self.state,
            "model": self.body.get("model", "Cosmos3-Nano"),
            "created_at": NOW,
            "started_at": None if self.state == "queued" else NOW,
            "ended_at": NOW if self.ended else None,
            "samples": list(self.samples.values()),
            "links": {"self": base, "events": f"{base}/events", "response": f"{base}/response"},
            "partial": False,
        }


class LedgerServer(BaselineServer):
    """Context manager; `steps` denoising steps of `step_s` seconds for each sample, one sample after the other."""

    faults: LedgerFaults

    def __init__(self, root: Path, *, steps: int = 2, step_s: float = 0.0, **options: Any) -> None:
        options["faults"] = options.get("faults") or LedgerFaults()
        super().__init__(root, **options)
        self.steps, self.step_s = steps, step_s
        self.ledger: dict[str, Batch] = {}
        self.resumed_from: list[str] = []  # Last-Event-ID of every event request

    @staticmethod
    def handler_class() -> type[BaselineHandler]:
        return LedgerHandler

    def submit(self, request_id: str, body: dict[str, Any], samples: list[dict[str, Any]]) -> Batch | None:
        """The batch, new or known; None when the id is taken by another body."""
        with self.lock:
            batch = self.ledger.get(request_id)
            if batch is not None and batch.body["samples"] != body["samples"]:
                return None
            new = batch is None
            if batch is None:
                batch = self.ledger[request_id] = Batch(request_id, body)
                self.batches.append(request_id)
            retry = [s for s in samples if batch.samples.get(s["name"], {}).get("retryable")]
        todo = samples if new else retry
        if todo and (new or batch.ended):
            batch.state, batch.response = "queued", b""
            for sample in todo:
                batch.samples[sample["name"]] = {"name": sample["name"], "state": "queued", "retryable": False}
            threading.Thread(target=self._run, args=(batch, todo, new), daemon=True).start()
        return batch

    def _run(self, batch: Batch, samples: list[dict[str, Any]], first: bool) -> None:
        batch.state = "running"
        batch.tell(type="batch", state="running")
        for sample in samples:
            name, record = sample["name"], batch.samples[sample["name"]]
            if batch.state == "cancelled":
                record |= {"state": "cancelled", "code": "cancelled", "message": "cancelled", "retryable": True}
                continue
            record["state"] = "running"
            batch.tell(sample=name, state="running")
            for step in range(1, self.steps + 1):
                time.sleep(self.step_s)
                batch.tell(type="progress", sample=name, step=step, total_steps=self.steps)
            while sample is samples[-1] and self.faults.cut_events:
                time.sleep(0.01)  # the planned cuts come before the end
            result = self.generate(batch.request_id, sample)
            if name in self.faults.interrupted_always or (first and name in self.faults.interrupted_once):
                result |= {"status": "error", "message": "the service restarted", "outputs": []}
                record |= {"state": "failed", "code": "interrupted", "message": "restarted", "retryable": True}
            elif result["status"] != "success":
                record |= {"state": "failed", "code": "guardrail_blocked", "message": result["message"]}
            else:
                record["state"] = "succeeded"
            batch.outputs[name] = result
            batch.tell(sample=name, state=record["state"])
        outputs = [batch.outputs[s["name"]] for s in batch.body["samples"] if s["name"] in batch.outputs]
        answer = self.response(batch.request_id, "Cosmos3-Nano", outputs)
        answer["samples"] = list(batch.samples.values())
        batch.response = json.dumps(answer, ensure_ascii=False).encode()
        done = all(s["state"] == "succeeded" for s in batch.samples.values())
        if batch.state != "cancelled":
            batch.state = "succeeded" if done else "failed"
        batch.tell(type="batch", state=batch.state)
        batch.tell(type="end", state=batch.state)


class LedgerHandler(BaselineHandler):
    app: LedgerServer

    def route(self, path: str) -> None:
        if not self.authorized():
            return
        parts = path.strip("/").split("/")
        if parts == ["v1", "batches"] and self.command == "GET":
            self._list()
            return
        if parts[:2] != ["v1", "batches"] or len(parts) == 2:
            super().route(path)
            return
        batch = self.app.ledger.get(parts[2])
        what = parts[3] if len(parts) == 4 else ""
        if batch is None or len(parts) > 4 or (what == "events" and self.app.faults.no_events):
            self.problem(404, "not_found", "no such batch")
        elif self.command == "DELETE":
            batch.state = batch.state if batch.ended else "cancelled"
            self.send(200, batch.view())
        elif what == "":
            self.send(200, batch.view())
        elif what == "response":
            if batch.ended and batch.response:
                self.reply(200, batch.response, "application/json")
            else:
                self.problem(409, "batch_not_ended", "the batch has not ended")
        elif what == "events":
            self._events(batch)
        else:
            self.problem(404, "not_found", "no such route")

    def _list(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        limit, after = int(query.get("limit", ["50"])[0]), query.get("after", [""])[0]
        ids = list(reversed(self.app.ledger))
        ids = ids[ids.index(after) + 1 :] if after else ids
        page = ids[:limit]
        views = [self.app.ledger[one].view() | {"samples": []} for one in page]
        self.send(200, {"batches": views, "next": page[-1] if len(page) == limit else None})

    def _batch(self) -> None:
        app, body = self.app, json.loads(self.body)
        if app.faults.post_statuses:
            super()._batch()
            return
        samples = body["samples"]
        batch = app.submit(body["request_id"], body, samples)
        if batch is None:
            self.problem(409, "request_id_conflict", "this request id belongs to another body")
            return
        if app.faults.lose_posts:
            app.faults.lose_posts -= 1
            self.hang_up()
        elif "respond-async" in self.headers.get("Prefer", ""):
            self.send(202, batch.view(), Location=f"/v1/batches/{batch.request_id}")
        else:
            with batch.condition:
                batch.condition.wait_for(lambda: batch.ended and bool(batch.response))
            self.reply(200, batch.response, "application/json")

    def _events(self, batch: Batch) -> None:
        last = self.headers.get("Last-Event-ID", "")
        self.app.resumed_from.append(last)
        position, limit = int(last or 0), None
        if self.app.faults.cut_events:
            self.app.faults.cut_events -= 1
            limit = position + 2
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while not (batch.ended and position >= len(batch.events)):
                with batch.condition:
                    batch.condition.wait_for(lambda seen=position: len(batch.events) > seen or batch.ended, timeout=0.5)
                    fresh = batch.events[position:limit]
                for event in fresh:
                    data = json.dumps(event)
                    self.wfile.write(f"id: {event['id']}\nevent: {event['type']}\ndata: {data}\n\n".encode())
                position += len(fresh)
                if limit is not None and position >= limit:
                    return
                if not fresh:
                    self.wfile.write(b": still here\n\n")
        except OSError:  # the client left
            return

    def problem(self, status: int, code: str, detail: str) -> None:
        data = json.dumps({"type": "about:blank", "title": "", "status": status, "detail": detail, "code": code})
        self.reply(status, data.encode(), "application/problem+json")
