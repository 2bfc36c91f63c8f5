"""The same networks in PyTorch, trained by `DistributedDataParallel` over gloo.

Tuned as its users do: one thread a process, gradients as views of one bucket, a fused Adam, rows cut out of
tensors in memory instead of a loader that gathers them one by one, metrics summed on the way and read once.
"""

from __future__ import annotations

import numpy as np
import torch
from peer import Peer, leave
from torch import distributed, nn


class Mlp(nn.Sequential):
    """784-100-10; the last activation is in the loss."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


class Block(nn.Module):
    """One block of the encoder, normalized before attention and before the two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(64, eps=1e-3), nn.LayerNorm(64, eps=1e-3)
        self.attention = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.Dropout(0.1))

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        """Shape (rows, 32, 64) in and out."""
        seen = self.before(flow)
        flow = flow + self.attention(seen, seen, seen, need_weights=False)[0]
        return flow + self.dense(self.between(flow))


class Transformer(nn.Module):
    """Two blocks of width 64 over 32 tokens, as in `models.py`."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 64)
        self.register_buffer("place", torch.empty(32, 64).uniform_(-0.05, 0.05))  # a constant there, too
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(64, eps=1e-3)
        self.classes = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Shape (rows, 32) in, (rows, 10) out."""
        flow = self.blocks(self.tokens(tokens) + self.place)
        return self.classes(self.norm(flow).mean(1))


def main() -> None:
    """Train when told."""
    peer = Peer(["torch"])
    here = peer.place
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{here.address}", rank=here.worker, world_size=here.workers
    )
    torch.manual_seed(0)
    network = {"mlp": Mlp, "transformer": Transformer}[peer.options.model]()
    model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x, y = map(torch.from_numpy, peer.task.rows())
    y, task, own, epoch = y.long(), peer.task, peer.task.batch // here.workers, 0

    def train(epochs: int) -> dict[str, float]:
        nonlocal epoch
        for _ in range(epochs):
            epoch += 1
            order = torch.from_numpy(np.random.default_rng(epoch).permutation(len(x)))
            totals = torch.zeros(2)
            for first in range(here.worker * own, len(x), task.batch):
                rows = order[first : first + own]
                labels = y[rows]
                guess = model(x[rows])
                loss = nn.functional.cross_entropy(guess, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    totals += torch.stack([loss, (guess.argmax(1) == labels).float().mean()])
            distributed.all_reduce(totals)
        seen = (totals / task.steps / here.workers).tolist()
        return dict(zip(("loss", "accuracy"), seen, strict=True))

    peer.run(train)
    leave()


main()
