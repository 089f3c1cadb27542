"""An artifact of any size in a real ledger: the file of an ended batch grows, and its journal is written again.

The engine at hand makes small files; how a service behaves that serves large ones does not depend on who made them. The
file has a hole where its new bytes are, so it takes no room on the disk.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cosmos3_serve.generator.batch_files import BatchFiles
from cosmos3_serve.generator.journal import encode_record

CHUNK = 4 * 1024 * 1024


def inflate(output_root: Path, path: str, size: int) -> str:
    """Make the artifact `path` of an ended batch `size` bytes long; its new SHA-256.

    Nobody may have asked the service for this batch since it ended, or it holds the old size in memory.
    """
    file = output_root / path
    os.truncate(file, size)
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    files = BatchFiles(output_root, path.split("/")[0])
    records = files.read().records
    for record in records:
        for artifact in record.get("artifacts", []):
            if artifact["path"] == path:
                artifact.update(bytes=size, sha256=digest.hexdigest())
    lines = [encode_record(record.pop("seq"), record) for record in records]
    files.journal_path.write_bytes(b"".join(lines))
    return digest.hexdigest()
