"""The quickstart's second act alone, run as a script: `reasoner_act.py WORKDIR`.

The first act is a double that leaves a clip where a publication would have it; the rest is the command's own code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from support import clips

from cosmos3_serve.cli import output
from cosmos3_serve.trial import quickstart


def first_act(workdir: Path, *_: object) -> dict[str, Any]:
    """A double: what the second act needs of the first one's result."""
    publication, path = workdir / "publication", "request" + quickstart.ASKED_ABOUT
    video = publication / "artifacts" / path
    video.parent.mkdir(parents=True)
    video.write_bytes(clips.clip(frames=9, fps=8))
    return {"publication": str(publication), "artifacts": [{"path": path}]}


if __name__ == "__main__":
    quickstart._first_act = first_act
    try:
        output.emit(quickstart.run(Path(sys.argv[1]), output.console()))
    except BaseException as error:
        sys.exit(output.report(error, command="quickstart", as_json=True))
