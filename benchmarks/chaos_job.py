"""What trains under faults in `chaos.py`: one of the networks, backed up, on as many workers as there are."""

from __future__ import annotations

import sys

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import numpy as np
from models import CASES


def main() -> None:
    """Train, and write what the chief ends with beside the backups."""
    name, epochs, save_freq = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    strategy = phalanx.MultiWorkerMirroredStrategy(connect_timeout=120, peer_timeout=5)
    with strategy.scope():
        model = CASES[name].compiled()
    x, y = CASES[name].rows()
    backup = phalanx.callbacks.BackupAndRestore("backups", save_freq=save_freq, delete_on_success=False)
    history = model.fit(
        x,
        y,
        batch_size=CASES[name].batch,
        epochs=epochs,
        verbose=0,
        callbacks=[backup, phalanx.testing.chaos.Chaos()],
    )
    if strategy.is_chief:
        values = [np.array(each.value) for each in [*model.variables, *model.optimizer.variables]]
        logs = {f"history_{name}": values for name, values in history.history.items()}
        np.savez("end.npz", *values, **logs)


main()
