"""Memory stays far below the size of what is carried: measured on a client process of its own, from its own start."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support import client_process
from support.baseline_server import BaselineServer
from support.s3 import LocalS3, boto

MB = 1_000_000


def carry(tmp_path: Path, environ: dict[str, str], output_path: str, files: int, size: int) -> float:
    """Carry real media of `size` bytes each; returns the memory that the client took for it, in MB."""
    samples = [
        {"name": f"s{i}", "prompt": "p", "num_frames": 1 if i % 2 else 5, "resolution": "256"} for i in range(files)
    ]
    (tmp_path / "batch.json").write_text(json.dumps(samples))
    with BaselineServer(tmp_path / "server", padding={"vision.jpg": size, "vision.mp4": size}) as server:
        options = {"input_path": str(tmp_path / "batch.json"), "output_path": output_path, "endpoint": server.endpoint}
        environ = {
            **os.environ,
            **environ,
            "NPA_COSMOS3_RAY_TOKEN": server.token,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        process = client_process.start(options, environ, tmp_path / "result.json")
        process.join(600)
        found = client_process.outcome(tmp_path / "result.json")
    assert "manifest" in found, found
    assert len(found["manifest"]["artifacts"]) == files
    assert all(item["bytes"] > size for item in found["manifest"]["artifacts"])
    assert len(found["manifest"]["media"]) == files
    return float(found["peak_kib"] - found["base_kib"]) * 1024 / MB


def test_four_files_of_64_mb_to_a_folder(tmp_path: Path) -> None:
    """Less than one of the four: none of them can have been held."""
    assert carry(tmp_path, {}, str(tmp_path / "out"), 4, 64 * MB) < 50


def test_four_files_of_64_mb_to_s3(s3: LocalS3, tmp_path: Path) -> None:
    """Two uploads hold up to four parts of 8 MiB each, whatever the size of the file."""
    s3.create_bucket("memory")
    try:
        assert carry(tmp_path, s3.environ, "s3://memory/out/", 4, 64 * MB) < 160
    finally:
        client = boto(s3.environ)
        for item in client.list_objects_v2(Bucket="memory").get("Contents", []):
            client.delete_object(Bucket="memory", Key=item["Key"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("to", ["folder", "s3"])
def test_two_files_of_400_mb_take_less_than_200_mb(to: str, tmp_path: Path) -> None:
    if to == "folder":
        assert carry(tmp_path, {}, str(tmp_path / "out"), 2, 400 * MB) < 200
        shutil.rmtree(tmp_path / "out")
        return
    with LocalS3() as own:  # its memory goes with it
        own.create_bucket("memory")
        assert carry(tmp_path, own.environ, "s3://memory/out/", 2, 400 * MB) < 200
