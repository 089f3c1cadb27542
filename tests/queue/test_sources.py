"""What --input-path may name, read in order, with file and line of everything."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.s3 import LocalS3, boto

from cosmos3_serve.errors import LimitExceeded, NotFound, UsageError
from cosmos3_serve.queue import sources
from cosmos3_serve.queue.sources import (
    MAX_FILE_BYTES,
    Fingerprint,
    InputFile,
    Start,
    fingerprint,
    input_files,
    is_queue,
    read_all,
)
from cosmos3_serve.queue.split import Sourced

ROW = {"name": "a", "prompt": "ü"}


async def read(path: str) -> list[str]:
    """Everything as a short text, in order."""
    files = await input_files(path)
    found = []
    seen = Fingerprint(files)
    async for item in read_all(files, seen):
        if isinstance(item, Start):
            found.append(f"[{item.file.name}]")
        else:
            found.append(item.where if isinstance(item, Sourced) else f"! {item.detail}")
    assert seen.hexdigest() == await fingerprint(files)
    return found


def test_which_paths_are_queues(tmp_path: Path) -> None:
    (tmp_path / "batch.json").touch()
    (tmp_path / "odd[1].json").touch()
    yes = ["s3://b/k/", "s3://b", "s3://b/in/*.json", "s3://b/x.jsonl", "x.ndjson", str(tmp_path), f"{tmp_path}/*.json"]
    no = ["s3://b/k.json", "s3://b/k", str(tmp_path / "batch.json"), str(tmp_path / "odd[1].json"), "", "missing.json"]
    assert [path for path in yes if not is_queue(path)] == []
    assert [path for path in no if is_queue(path)] == []


async def test_lines(tmp_path: Path) -> None:
    row = json.dumps(ROW).encode()
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + row + b"\r\n\n" + row + b"\n[1]\n{\n" + row)
    found = await read(str(tmp_path / "x.jsonl"))
    assert [text.split(": ")[0] for text in found] == [
        *("[x.jsonl]", "x.jsonl:1", "x.jsonl:3", "! x.jsonl:4", "! x.jsonl:5", "x.jsonl:6")
    ]


async def test_lines_that_chunks_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cosmos3_serve.storage.directory import DirectoryStore

    whole = DirectoryStore.get_stream
    monkeypatch.setattr(DirectoryStore, "get_stream", lambda self, key, **more: whole(self, key, chunk_size=7, **more))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(ROW | {"name": f"é{i}"}) + "\n" for i in range(20)))
    assert await read(str(tmp_path / "x.jsonl")) == ["[x.jsonl]", *(f"x.jsonl:{i + 1}" for i in range(20))]


async def test_a_folder_and_a_glob(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b/2.json", "1.json", ".hidden/3.json", "b/.4.json", "b/notes.txt"):
        (tmp_path / name).write_text(json.dumps([ROW]))
    (tmp_path / "b/5.jsonl").write_text(json.dumps(ROW))
    everything = ["[1.json]", "1.json: samples[0]", "[b/2.json]", "b/2.json: samples[0]", "[b/5.jsonl]", "b/5.jsonl:1"]
    assert await read(str(tmp_path)) == everything
    assert await read(f"{tmp_path}/*/*.json") == ["[b/2.json]", "b/2.json: samples[0]"]
    with pytest.raises(UsageError) as refused:
        await input_files(f"{tmp_path}/*.yaml")
    assert refused.value.stable_code == "no_input_files"


async def test_a_relative_path_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text(json.dumps(ROW))
    assert await read("x.jsonl") == ["[x.jsonl]", "x.jsonl:1"]
    assert await read("*.jsonl") == ["[x.jsonl]", "x.jsonl:1"]


async def test_a_prefix_in_s3(s3: LocalS3) -> None:
    s3.create_bucket("queue-in")
    client = boto(s3.environ)
    for key in ("in/b.json", "in/a.json", "in/deep/c.json", "in/x.txt", "input/other.json"):
        client.put_object(Bucket="queue-in", Key=key, Body=json.dumps([ROW]).encode())
    found = [text for text in await read("s3://queue-in/in/") if text.startswith("[")]
    assert found == ["[a.json]", "[b.json]", "[deep/c.json]"]
    assert [text for text in await read("s3://queue-in/in/*.json") if text.startswith("[")] == found
    with pytest.raises(UsageError):
        await input_files("s3://queue-in/nothing/")
    with pytest.raises(NotFound, match=r"gone\.jsonl"):
        await read("s3://queue-in/in/gone.jsonl")


@pytest.mark.parametrize("text", ["{", "7", '{"samples": []}', '{"samples": [1]}', "[]"])
async def test_a_file_that_is_no_batch(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    (found,) = await read(str(tmp_path))
    assert found.startswith("! x.json: ")


async def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 1000)
    (tmp_path / "x.jsonl").write_text("x" * 3000)
    with pytest.raises(LimitExceeded, match=r"x\.jsonl:1"):
        await read(str(tmp_path / "x.jsonl"))


async def test_the_fingerprint_is_of_bytes_names_and_order(tmp_path: Path) -> None:
    async def of(**files: str) -> str:
        for path in tmp_path.glob("*.json"):
            path.unlink()
        for name, text in files.items():
            (tmp_path / f"{name}.json").write_text(text)
        return await fingerprint(await input_files(str(tmp_path)))

    found = [await of(a="1", b="2"), await of(a="2", b="1"), await of(a="12", b=""), await of(a="1", c="2")]
    assert len(set(found)) == 4
    assert found[0] == await of(a="1", b="2")


async def test_batch_files_are_read_ahead_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once, never more than the limits of files and bytes, and in their order whatever ends first."""
    for number in range(40):
        (tmp_path / f"{number:02}.json").write_text(json.dumps([{"name": f"n{number}"}]))
    running = most = 0
    whole = sources._whole

    async def slowly(file: InputFile) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (40 - int(file.stem)))
        running -= 1
        return await whole(file)

    monkeypatch.setattr(sources, "_whole", slowly)
    files = await input_files(str(tmp_path))
    items = [item async for item in sources.read_all(files, Fingerprint(files))]
    assert [item.sample["name"] for item in items if isinstance(item, Sourced)] == [f"n{n}" for n in range(40)]
    assert most == sources.AHEAD
    most = 0
    large = [replace(file, size=MAX_FILE_BYTES // 2) for file in files]
    assert len([item async for item in sources.read_all(large, Fingerprint(large))]) == 80
    assert most == 2
