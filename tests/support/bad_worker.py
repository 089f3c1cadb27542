"""A media worker that does what the file says: `die`, `hang`, `late` (hangs while normalising), `noise`, or works."""

import json
import os
import signal
import sys
import time
from pathlib import Path

INFO = {
    "kind": "video", "mime": "video/mp4", "container": "mp4", "codec": "h264", "pixel_format": "yuv420p", "width": 2,
    "height": 2, "frames": 2, "fps": 1.0, "duration_s": 2.0, "size": 1, "normalised": [],
}  # fmt: skip


def say(value: object) -> None:
    print(value if isinstance(value, str) else json.dumps(value), flush=True)


def main() -> None:
    say("ready")
    for line in sys.stdin:
        word = Path(json.loads(line)["path"]).read_text()
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "hang":
            time.sleep(60)
        if word == "late":
            say({"stage": "normalise"})
            time.sleep(60)
        if word == "fault":
            say({"fault": "Input/output error"})
        else:
            say({"info": {**INFO, "codec": str(os.getpid())}, "served": None})


if __name__ == "__main__":
    main()
