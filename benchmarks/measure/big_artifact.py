"""An artifact of any size in a real ledger: the file of an ended batch grows, and its row is written again.

The engine at hand makes small files; how a service behaves that serves large ones does not depend on who made them. The
file has a hole where its new bytes are, so it takes no room on the disk.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from cosmos3_serve.generator.ledger.files import DATABASE, PRIVATE
from cosmos3_serve.generator.ledger.packed import merged, unpacked

CHUNK = 4 * 1024 * 1024


def inflate(output_root: Path, path: str, size: int) -> str:
    """Make the artifact `path` of an ended batch `size` bytes long; its new SHA-256.

    No service may run on the output root: it alone may open its ledger.
    """
    file = output_root / path
    os.truncate(file, size)
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    with closing(sqlite3.connect(output_root / PRIVATE / DATABASE)) as ledger, ledger:
        for key, packed in ledger.execute("SELECT rowid, result FROM detail WHERE result IS NOT NULL").fetchall():
            artifacts = unpacked(packed).get("artifacts", [])
            for artifact in artifacts:
                if artifact["path"] == path:
                    artifact.update(bytes=size, sha256=digest.hexdigest())
                    row = (merged(packed, {"artifacts": artifacts}), key)
                    ledger.execute("UPDATE detail SET result = ? WHERE rowid = ?", row)
    return digest.hexdigest()
