"""Programs of PyTorch on a GPU whose allocations are recorded, one in a process.

``python -m benchmarks.gpu_programs NAME FILE`` runs one, writes what
``torch.cuda.memory._dump_snapshot`` does, and prints what PyTorch reserved at most.
"""

import argparse
import json
import random
from collections.abc import Callable
from typing import Any

MOST_EVENTS = 1 << 20
MIB = 1 << 20


def sizes(torch: Any) -> None:  # noqa: ANN401  # it may be missing
    """Blocks of many sizes come and go, the large ones ever larger."""
    choose, held = random.Random(7), list[Any]()
    for step in range(3000):
        most = (8 << (step // 750)) * MIB
        nbytes = choose.choice((512, 40_000, MIB // 2, 3 * MIB, choose.randrange(most)))
        held.append(torch.empty(max(nbytes, 1), dtype=torch.uint8, device="cuda"))
        if len(held) > 60:
            del held[choose.randrange(len(held))]


def sequences(torch: Any) -> None:  # noqa: ANN401  # as above
    """Train a small transformer on batches of changing lengths."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer, choose = torch.optim.AdamW(model.parameters()), random.Random(3)
    for _ in range(30):
        batch = torch.randn(16, choose.randrange(64, 512), 512, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


PROGRAMS: dict[str, Callable[[Any], None]] = {"sizes": sizes, "sequences": sequences}


def main() -> None:
    """Run one program; what it cannot do is said on stderr, by the exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_programs")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("file")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("this PyTorch sees no GPU")
    torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS)
    PROGRAMS[options.program](torch)
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(options.file)
    print(json.dumps({"reserved_nbytes": torch.cuda.max_memory_reserved()}))


if __name__ == "__main__":
    main()
