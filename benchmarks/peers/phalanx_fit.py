"""Phalanx's `fit` under `MultiWorkerMirroredStrategy`, as a user writes it; for `phalanx run --workers 2`."""

from __future__ import annotations

import phalanx  # before keras: it chooses the JAX backend

# isort: split
from peer import Peer


def main() -> None:
    """Train when told."""
    peer = Peer(["phalanx", "jax", "keras"], view=["global", "replica"])
    strategy = phalanx.MultiWorkerMirroredStrategy(view=peer.options.view)

    from models import CASES  # makes Keras's first arrays: after the strategy

    case = CASES[peer.options.model]
    x, y = case.rows()
    with strategy.scope():
        model = case.compiled()

    def train(epochs: int) -> dict[str, float]:
        history = model.fit(x, y, batch_size=case.batch, epochs=epochs, verbose=0).history
        return {name: values[-1] for name, values in history.items()}

    peer.run(train)


main()
