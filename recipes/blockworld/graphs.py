"""Whether CUDA graphs record the training step rightly here: compares with the plain step, leaves the file `graphs-work`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

import torch
from train_generator import Recorder
from train_reasoner import fresh, gen_parameters


def main(out: Path) -> None:
    cuda = torch.device("cuda")
    net, _ = fresh()
    torch.nn.init.normal_(net.proj_out.weight, std=0.05)
    for p in net.parameters():
        p.requires_grad_(False)
    learned = gen_parameters(net)
    for p in learned:
        p.requires_grad_(True)
    grads = [torch.zeros_like(p) for p in learned]
    (out / "graphs-work").touch()
    recorder = Recorder(net, learned, grads, out)
    (out / "graphs-work").unlink()
    for shape, wide in (((8, 48, 1, 16, 16), False), ((4, 48, 3, 12, 20), False), ((2, 48, 5, 12, 20), True)):
        for clean in (0, 1) if shape[2] > 1 else (0,):
            for attempt in range(3):
                inputs = [
                    torch.randn(shape, device=cuda), torch.randn(shape, device=cuda), torch.rand(shape[0], device=cuda),
                    torch.randn(shape[0], 12, 2, 90, 64, device=cuda, dtype=torch.bfloat16),
                    torch.randint(20, 90, (shape[0],), device=cuda, dtype=torch.int32),
                    torch.full((shape[0],), 24.0, device=cuda),
                ]  # fmt: skip
                if wide:
                    inputs.append(torch.randn(shape[0], 16, 16, device=cuda))
                plain = recorder.body(inputs, clean).item()
                wanted = [g.clone() for g in grads]
                found = recorder.step(inputs, clean).item()
                gap = max(float((a - b).norm() / (a.norm() + 1e-6)) for a, b in zip(wanted, grads, strict=True))
                print(shape, clean, attempt, plain, found, gap, flush=True)
                assert abs(plain - found) < 1e-3 * abs(plain) and gap < 0.05
    (out / "graphs-work").touch()
    print("graphs work", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
