"""Questions about videos in S3, asked of the real gateway over stub replicas."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.gateway import TOKEN, World

from cosmos3_serve.queue.progress import Silent
from cosmos3_serve.queue.run import QueueOrder, run_queue_async
from cosmos3_serve.reasoner_client.batch.runner import ReasonerWork

ENV = {"COSMOS3_REASONER_TOKEN": TOKEN}


def question(name: str, text: str = "What moves?", video: str = "", **body: Any) -> dict[str, Any]:
    content: Any = text
    if video:
        content = [{"type": "video_url", "video_url": {"url": video}}, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": messages, **body}}


@dataclass
class Bench:
    tmp: Path
    here: World

    @property
    def out(self) -> Path:
        return self.tmp / "out"

    def write(self, questions: list[dict[str, Any]], name: str = "questions.jsonl") -> Path:
        path = self.tmp / name
        path.write_text("".join(json.dumps(item) + "\n" for item in questions))
        return path

    def order(self, questions: list[dict[str, Any]] | Path, machine: str = "here", **given: Any) -> QueueOrder:
        path = questions if isinstance(questions, Path) else self.write(questions)
        own = {"journal_dir": self.tmp / machine, "concurrency": 4, "part_size": 10}
        work = ReasonerWork(**{**own, **given.pop("work", {})})
        fields = {"input_path": str(path), "output_path": str(self.out), "endpoints": [self.here.url], "work": work}
        return QueueOrder(**{**fields, **given})

    async def run(self, questions: list[dict[str, Any]] | Path, machine: str = "here", **given: Any) -> dict[str, Any]:
        return await run_queue_async(self.order(questions, machine, **given), Silent(), environ=ENV)

    def answers(self) -> list[dict[str, Any]]:
        """Every line of every part, after the hash in its record was compared, without the package."""
        found = []
        for record in sorted(self.out.glob("parts/*/provenance.json")):
            manifest = json.loads(record.read_bytes())
            (artifact,) = manifest["artifacts"]
            data = (record.parent / "artifacts" / artifact["path"]).read_bytes()
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (artifact["sha256"], artifact["bytes"])
            request = (record.parent / "request.json").read_bytes()
            assert hashlib.sha256(request).hexdigest() == manifest["request_sha256"]
            lines = [json.loads(line) for line in data.splitlines()]
            assert [line["custom_id"] for line in lines] == [r["custom_id"] for r in json.loads(request)["requests"]]
            found += lines
        return found

    @property
    def asked(self) -> int:
        return sum(len(stub.asked) for stub in self.here.replicas)
