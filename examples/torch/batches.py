"""Train on batches that lie in a pool: the same block serves every batch.

    python examples/torch/batches.py

It needs PyTorch, on any device; the batches are on the host.
"""

import torch

import madl
from madl.integrations.torch import tensor

BATCHES = 20
SHAPE = (256, 1024)


def main() -> None:
    """Fit a line to batches, each in new memory."""
    torch.manual_seed(0)
    pool = madl.Pool("cpu", limit="64 MiB")
    truth = torch.randn(SHAPE[1], 1)
    model = torch.nn.Linear(SHAPE[1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nbytes = SHAPE[0] * SHAPE[1] * torch.float32.itemsize
    losses, addresses = [], set()
    for _ in range(BATCHES):
        batch = tensor(pool.allocate(nbytes), torch.float32, SHAPE).normal_()
        loss = torch.nn.functional.mse_loss(model(batch), batch @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        addresses.add(batch.data_ptr())
        del batch
    print(f"the loss fell: {losses[-1] < losses[0] / 2}")
    print(f"{BATCHES} batches lay in {len(addresses)} block")
    print(f"bytes live now: {pool.stats().live_nbytes}")


if __name__ == "__main__":
    main()
