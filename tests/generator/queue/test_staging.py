"""Staging: refused before it is fetched, fetched once, failing only whom it concerns, and gone afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.fakes import until

from cosmos3_serve.contract.inputs import fold_text_inputs
from cosmos3_serve.errors import SampleCode, SampleError, StorageAuthorizationError, StorageFailure
from cosmos3_serve.generator.queue.staging import Stager
from cosmos3_serve.storage.directory import DirectoryStore
from cosmos3_serve.storage.roots import AllowedRoots
from cosmos3_serve.storage.store import CHUNK_BYTES
from cosmos3_serve.storage.uri import S3Uri

PNG = b"\x89PNG pixels"


class Bucket(DirectoryStore):
    """Objects in a directory; counts reads, fails or waits where told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()
        self.failures: dict[str, list[Exception]] = {}
        self.gate: asyncio.Event | None = None
        self.open_reads = self.most_open = 0

    async def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = CHUNK_BYTES, max_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.reads[key] += 1
        self.open_reads += 1
        self.most_open = max(self.most_open, self.open_reads)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.failures.get(key):
                raise self.failures[key].pop(0)
            async for chunk in super().get_stream(key, start=start, chunk_size=chunk_size, max_bytes=max_bytes):
                yield chunk
        finally:
            self.open_reads -= 1

    def put(self, key: str, data: bytes = PNG) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "bucket")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def stager(root: Path, bucket: Bucket, *, roots: str = "s3://b/in", **limits: Any) -> Stager:
    options: dict[str, Any] = {"max_bytes": 1000, "timeout_s": 30.0, **limits}
    return Stager(root, AllowedRoots.parse(roots), store_of=lambda uri: bucket, **options)


def planned(stager: Stager, *samples: dict[str, Any]) -> None:
    stager.open("r1", stager.check([{"name": str(i), **sample} for i, sample in enumerate(samples)]))


def staged_files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root / ".cosmos3")) for p in root.rglob("*") if p.is_file())


async def test_inputs_become_private_files_with_their_size_and_hash(root: Path, bucket: Bucket) -> None:
    bucket.put("in/cat pic.png")
    bucket.put("in/edges", b"control")
    s = stager(root, bucket)
    uri = "s3://b/in/cat%20pic.png"
    planned(s, {"vision_path": uri, "edge": {"control_path": "s3://b/in/edges"}})
    staged = await s.stage("r1", 0)
    home = root / ".cosmos3" / "staging" / "r1"
    assert staged.files == {("vision_path",): str(home / "0.png"), ("edge", "control_path"): str(home / "1.bin")}
    assert (home / "0.png").read_bytes() == PNG
    assert staged.records[0] == {
        "field": "vision_path",
        "uri": uri,
        "bytes": len(PNG),
        "sha256": hashlib.sha256(PNG).hexdigest(),
    }
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("sample", "field", "text"),
    [
        ({"vision_path": "/etc/passwd"}, "vision_path", "sample inputs require an authorized s3:// object"),
        ({"vision_path": "https://x/y.png"}, "vision_path", "sample inputs require an authorized s3:// object"),
        ({"vision_path": "s3://b/in/"}, "vision_path", "sample inputs must identify a single S3 object"),
        ({"vision_path": "s3://b/in/a%3Fb.png"}, "vision_path", "conditioning S3 key cannot be downloaded exactly"),
        ({"vision_path": "s3://b/inner/a.png"}, "vision_path", "outside the configured bucket/prefix roots"),
        ({"edge": {"control_path": "s3://c/in/a"}}, "edge.control_path", "outside the configured bucket/prefix roots"),
        ({"tensors_file": "s3://b/in/a"}, "tensors_file", "unsupported sample file input"),
        ({"output_dir": "x"}, "output_dir", "sample filesystem configuration is server-owned"),
    ],
)
async def test_what_may_not_be_read_is_refused_with_its_place_and_nothing_is_fetched(
    root: Path, bucket: Bucket, sample: dict[str, Any], field: str, text: str
) -> None:
    bucket.put("in/good.png")
    with pytest.raises(StorageAuthorizationError, match=text) as caught:
        planned(stager(root, bucket), {"vision_path": "s3://b/in/good.png"}, sample)
    assert [e.field for e in caught.value.errors] == [f"samples[1].{field}"]
    assert not bucket.reads


async def test_without_roots_every_input_is_refused_and_text_only_is_fine(root: Path, bucket: Bucket) -> None:
    s = stager(root, bucket, roots="")
    with pytest.raises(StorageAuthorizationError, match="outside the configured"):
        planned(s, {"vision_path": "s3://b/in/a.png"})
    planned(s, {"prompt": "only text"})
    assert not root.exists()


async def test_all_findings_are_told_at_once(root: Path, bucket: Bucket) -> None:
    with pytest.raises(StorageAuthorizationError) as caught:
        planned(stager(root, bucket), {"vision_path": "x"}, {"action_path": "s3://z/a"}, {"defaults_file": "d"})
    assert {e.field for e in caught.value.errors} == {
        "samples[0].vision_path",
        "samples[1].action_path",
        "samples[2].defaults_file",
    }


async def test_one_object_of_many_samples_is_fetched_once_and_removed_after_the_last(
    root: Path, bucket: Bucket
) -> None:
    bucket.put("in/a.png")
    s = stager(root, bucket)
    planned(s, *[{"vision_path": "s3://b/in/a.png"}] * 3)
    await asyncio.gather(s.stage("r1", 0), s.stage("r1", 1))
    await s.stage("r1", 2)
    assert bucket.reads == {"in/a.png": 1}
    for index in (0, 2):
        await s.release("r1", index)
    assert staged_files(root) == ["staging/r1/0.png"]
    await s.release("r1", 1)
    assert staged_files(root) == []
    await s.close("r1")
    assert list((root / ".cosmos3" / "staging").iterdir()) == []


async def test_a_failing_object_fails_its_own_sample_only_and_may_pass_later(root: Path, bucket: Bucket) -> None:
    bucket.put("in/a.png")
    bucket.put("in/b.png")
    bucket.failures["in/a.png"] = [StorageFailure("object storage is busy", code="storage_unavailable")]
    s = stager(root, bucket)
    planned(s, {"vision_path": "s3://b/in/a.png"}, {"vision_path": "s3://b/in/b.png"})
    results = await asyncio.gather(s.stage("r1", 0), s.stage("r1", 1), return_exceptions=True)
    assert isinstance(results[0], SampleError) and results[0].sample_code is SampleCode.STAGING_FAILED
    assert results[0].detail == "vision_path: object storage is busy"
    assert not isinstance(results[1], BaseException)
    assert (await s.stage("r1", 0)).files


@pytest.mark.parametrize(
    ("data", "limits", "code", "reads"),
    [
        (None, {}, SampleCode.STAGING_FAILED, 1),
        (b"x" * 1001, {}, SampleCode.INPUT_INVALID, 1),
    ],
)
async def test_a_hopeless_object_is_not_fetched_again_for_each_sample(
    root: Path, bucket: Bucket, data: bytes | None, limits: dict[str, Any], code: SampleCode, reads: int
) -> None:
    if data is not None:
        bucket.put("in/a.png", data)
    s = stager(root, bucket, **limits)
    planned(s, *[{"vision_path": "s3://b/in/a.png"}] * 3)
    for index in range(3):
        with pytest.raises(SampleError) as caught:
            await s.stage("r1", index)
        assert caught.value.sample_code is code
        assert "in/a" not in caught.value.detail
    assert bucket.reads["in/a.png"] == reads
    assert staged_files(root) == []


async def test_a_store_that_never_answers_is_given_up_and_leaves_nothing(root: Path, bucket: Bucket) -> None:
    bucket.put("in/a.png")
    bucket.put("in/p.txt", b"text")
    bucket.gate = asyncio.Event()
    s = stager(root, bucket, timeout_s=0.01)
    planned(s, {"vision_path": "s3://b/in/a.png"}, {"prompt_path": "s3://b/in/p.txt"})
    for index in (0, 1):
        with pytest.raises(SampleError, match="not fetched") as caught:
            await s.stage("r1", index)
        assert caught.value.sample_code is SampleCode.STAGING_FAILED
    assert staged_files(root) == []


async def test_only_so_many_objects_are_fetched_at_once(root: Path, bucket: Bucket) -> None:
    bucket.gate = asyncio.Event()
    for n in range(6):
        bucket.put(f"in/{n}.png")
    s = stager(root, bucket, parallel=2)
    planned(s, *[{"vision_path": f"s3://b/in/{n}.png"} for n in range(6)])
    tasks = [asyncio.create_task(s.stage("r1", n)) for n in range(6)]
    await until(lambda: bucket.open_reads == 2)
    bucket.gate.set()
    await asyncio.gather(*tasks)
    assert bucket.most_open == 2 and len(staged_files(root)) == 6


async def test_closing_a_batch_ends_its_fetches(root: Path, bucket: Bucket) -> None:
    bucket.put("in/a.png")
    bucket.gate = asyncio.Event()
    s = stager(root, bucket)
    planned(s, {"vision_path": "s3://b/in/a.png"})
    task = asyncio.create_task(s.stage("r1", 0))
    await until(lambda: bucket.open_reads == 1)
    await s.close("r1")
    with pytest.raises(SampleError) as caught:
        await task
    assert caught.value.sample_code is SampleCode.CANCELLED
    assert bucket.open_reads == 0 and staged_files(root) == []


async def test_text_objects_become_prompts_by_the_frameworks_rules(root: Path, bucket: Bucket) -> None:
    bucket.put("in/p.json", b' {"subject": "caf\xc3\xa9"}\n')
    bucket.put("in/n.txt", b"  no fog \n")
    bucket.put("in/c.png")
    s = stager(root, bucket)
    sample = {
        "prompt_path": "s3://b/in/p.json",
        "negative_prompt_file": "s3://b/in/n.txt",
        "edge": {"control_path": "s3://b/in/c.png"},
    }
    planned(s, sample)
    staged = await s.stage("r1", 0)
    folded = fold_text_inputs(sample, staged.texts)
    assert folded == {
        "prompt": '{"subject": "caf\\u00e9"}',
        "negative_prompt": "no fog",
        "edge": {"control_path": "s3://b/in/c.png"},
    }
    assert {r["field"] for r in staged.records} == {"prompt_path", "negative_prompt_file", "edge.control_path"}
    assert staged_files(root) == ["staging/r1/2.png"]


@pytest.mark.parametrize("data", [b"x" * (64 * 1024 + 1), b"\xff\xfe"])
async def test_text_objects_are_bounded_and_utf8(root: Path, bucket: Bucket, data: bytes) -> None:
    bucket.put("in/p.txt", data)
    s = stager(root, bucket)
    planned(s, {"prompt_path": "s3://b/in/p.txt"})
    with pytest.raises(SampleError) as caught:
        await s.stage("r1", 0)
    assert caught.value.sample_code is SampleCode.INPUT_INVALID


async def test_a_store_that_cannot_be_opened_fails_the_sample(root: Path) -> None:
    def no_store(uri: S3Uri) -> Bucket:
        raise StorageFailure("no credentials")

    s = Stager(root, AllowedRoots.parse("s3://b"), max_bytes=1, timeout_s=1, store_of=no_store)
    planned(s, {"vision_path": "s3://b/a.png"})
    with pytest.raises(SampleError, match="no credentials"):
        await s.stage("r1", 0)
