"""The real HTTP table, coordinator and ledger under a client whose answer is damaged on the way; then recovery.

The engine is a double that writes real media; Ray and a model are not here (tests/e2e has them).
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.baseline_media import write_outputs
from support.batches import make_front
from support.core import start_core
from support.fake_engine import FakeEngine, done
from support.fakes import FakeClock
from support.mangling import ManglingProxy

from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.errors import ContractViolation
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.service.http_server import HttpServer
from cosmos3_serve.service.tokens import TokenBook

TOKEN = "right-token-123"
PROFILE = diffusers_profile("0.42.1", tiny=True)
SAMPLES = [
    {"name": "still", "prompt": "a red ball", "num_frames": 1, "seed": 7},
    {"name": "clip", "prompt": "a blue ball", "num_frames": 5},
]


def engine_double(root: Path) -> FakeEngine:
    """Writes media and both records below the output root, as the diffusers engine lays them out."""

    def write(job: EngineJob) -> EngineResult:
        home = Path(job.output_dir)
        outputs = write_outputs(job.args, home, {})
        files = [Path(file).relative_to(root).as_posix() for file in outputs[0]["files"]]
        args = {**job.args, "output_dir": home.relative_to(root).as_posix()}
        result = {"args": args, "status": "success", "message": None, "stack_trace": None}
        (home / "sample_args.json").write_text(json.dumps(args))
        record = result | {"outputs": [{"content": {}, "files": files}]}
        (home / "sample_outputs.json").write_text(json.dumps(record))
        return done(job, files=files)

    engine = FakeEngine(root)
    engine.script = {sample["name"]: [write] for sample in SAMPLES}
    return engine


async def test_a_damaged_answer_is_recovered_from_the_ledger_and_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", TOKEN)
    (tmp_path / "batch.json").write_text(json.dumps({"samples": SAMPLES}))
    root = (tmp_path / "service" / "out").absolute()
    core = await start_core(tmp_path / "service", FakeClock(), engine=engine_double(root), profile=PROFILE)
    front = make_front(None, TokenBook(TOKEN, None))
    front.batches = core.coordinator
    front.readiness.add("application", lambda: (True, "RUNNING"))
    server = HttpServer(build_app(front), "127.0.0.1", 0)
    await server.start()
    try:
        upstream = f"http://127.0.0.1:{server.port}"
        with ManglingProxy(upstream) as proxy:
            request = {
                "input_path": str(tmp_path / "batch.json"),
                "output_path": str(tmp_path / "first"),
                "endpoint": proxy.endpoint,
                "expected_revision": PROFILE.revision,
                "journal_dir": tmp_path / "journal",
            }
            with pytest.raises(ContractViolation):
                await asyncio.to_thread(lambda: submit_batch(**request))
            assert len(proxy.mangled) == 1
        (journal,) = Journals(tmp_path / "journal").all()
        request_id, before = journal.run.request_id, (journal.directory / "run.json").read_bytes()
        calls = len(core.engine.calls)
        true_response = await core.response(request_id, "default")

        async def recover(place: str, **options: Any) -> dict[str, Any]:
            order = RecoverOrder(
                request_id=request_id, output_path=str(tmp_path / place), journal_dir=tmp_path / "journal", **options
            )
            manifest = (await asyncio.to_thread(recover_batch, order)).manifest
            assert manifest is not None
            return manifest

        from_ledger = await recover("ledger", endpoint=upstream)
        from_root = await recover("root", source=str(root))
        from_folder = await recover("folder", source=str(root / request_id))
    finally:
        await server.stop()
        await core.coordinator.close()
    assert (tmp_path / "ledger" / "response.json").read_bytes() == true_response
    assert (tmp_path / "root" / "response.json").read_bytes() == true_response, "the copied ledger's exact bytes"
    assert not (tmp_path / "folder" / "response.json").exists()
    assert from_ledger["artifacts"] == from_root["artifacts"] == from_folder["artifacts"]
    assert from_ledger["structured_outputs"] == from_folder["structured_outputs"]
    assert from_ledger["seeds"] == from_folder["seeds"], "the drawn seed, too"
    assert (from_ledger["weights"], from_folder["weights"]) == ("random", "unknown")
    for manifest in (from_ledger, from_root, from_folder):
        assert manifest["recovery"]["first_attempt"]["failure_code"] == "contract_violation"
    assert (journal.directory / "run.json").read_bytes() == before
    assert len(core.engine.calls) == calls, "nothing was generated again"
    left = {path.relative_to(tmp_path / "first").parts[0] for path in (tmp_path / "first").rglob("*")}
    assert left <= {".cosmos3-claims"}, "the refused run left who held the place, and nothing of a publication"
