"""One command: train the block-world checkpoint, export it, evaluate it.

python recipes/blockworld/run.py --out DIR [--minutes 28]      everything, on a GPU
python recipes/blockworld/run.py --out DIR --dry-run           half a minute on a CPU: every stage takes a few steps
python recipes/blockworld/run.py --out DIR --stage generator   one stage, from what lies in DIR
python recipes/blockworld/run.py --out DIR --stage unpack      the shipped weights as stage files, to go on from
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

STAGES = ("vae", "reasoner", "generator", "export", "evaluate", "more", "validate", "ceiling", "scenes", "unpack")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", action="append", choices=STAGES)
    parser.add_argument("--seconds", type=float, default=500.0, help="of each training stage")
    parser.add_argument("--scenes", type=int)
    parser.add_argument("--resume", action="store_true", help="go on from the stage's own checkpoint")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--count", type=int, default=200, help="prompts of an evaluation")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    import torch

    torch.set_float32_matmul_precision("high")
    import pools

    pools.warm()
    began = time.monotonic()
    for stage in args.stage or STAGES[:5]:
        _run(stage, args)
        print(f"{stage}: {time.monotonic() - began:.0f} s since the start", flush=True)
    pools.stop()
    os._exit(0)  # waiting for the executor's threads can take long


def _run(stage: str, args: argparse.Namespace) -> None:
    import train_generator
    import train_reasoner
    import train_vae

    out: Path = args.out
    codec, reasoner, generator = out / "vae.pt", out / "reasoner.pt", out / "generator.pt"
    dry = args.dry_run
    more: dict[str, Any] = {} if args.scenes is None else {"scenes": args.scenes}
    if args.rate is not None:
        more["rate"] = args.rate
    if stage == "vae":
        train_vae.train(
            out,
            args.seconds,
            **(
                {"steps": 3, "scenes": 20, "small": True}
                if dry
                else {"scenes": args.scenes or 20_000, "resume": codec if args.resume else None}
            ),
        )
    elif stage == "reasoner":
        more |= {"steps": 12, "scenes": 40, "batch": 4} if dry else {"resume": reasoner if args.resume else None}
        train_reasoner.train(out, args.seconds, **more)
    elif stage == "unpack":
        train_generator.unpack(Path(__file__).parents[2] / "models" / "blockworld", out)
    elif stage == "ceiling":
        import evaluate

        evaluate.ceiling(codec, 2 if dry else args.count, log=_say)
    elif stage == "scenes":
        train_generator.draw_scenes(out, args.scenes or 90_000, args.seed)
    elif stage == "generator":
        more |= {"steps": 8, "scenes": 4, "scale": 0.001} if dry else {"resume": generator if args.resume else None}
        train_generator.train(out, args.seconds, codec, reasoner, seed=args.seed, **more)
    else:
        net, vision = train_reasoner.fresh()
        train_reasoner.load_into(net, vision, reasoner)
        net.load_state_dict({k: v.float() for k, v in torch_load(generator)["net"].items()}, strict=False)
        if stage == "export":
            import layout

            vae, _, _ = train_vae.load(codec)
            layout.export(out / "checkpoint", net, vae, vision, {"seed": args.seed})
        else:
            import evaluate

            work = {"evaluate": evaluate.table, "more": evaluate.more, "validate": evaluate.validate}[stage]
            found = work(net, vision, codec, 1 if dry else args.count, log=_say, **({"brief": True} if dry else {}))
            (out / f"{stage}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _say(name: str, value: Any) -> None:
    print(name, json.dumps(value), flush=True)


def torch_load(path: Path) -> Any:
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


if __name__ == "__main__":
    main()
