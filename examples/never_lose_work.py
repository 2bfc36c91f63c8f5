"""A run that survives the end of its workers: kill one, and watch it go on to the same final loss.

    phalanx run --workers 2 --max-restarts 3 examples/never_lose_work.py

Each worker prints its process number. While it trains, in another terminal: `kill -9 NUMBER`. The launcher
starts all workers again, `fit` goes on from the newest backup, and the last line is that of a run
that nobody killed.
"""

from __future__ import annotations

import argparse
import datetime
import os

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import digits
import keras
from keras import layers


def build() -> keras.Model:
    """Make the 784-100-10 network, with dropout: its masks go on, too."""
    model = keras.Sequential([layers.Dense(100, activation="relu"), layers.Dropout(0.3), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train on digits, backed up twice a second."""
    parser = argparse.ArgumentParser(description="Training on digits that goes on after a kill.")
    parser.add_argument("--epochs", type=int, default=60, help="epochs (default 60)")
    parser.add_argument("--rows", type=int, default=4000, help="training rows (default 4000, all there are)")
    parser.add_argument("--backups", default="runs/never_lose_work", help="folder (runs/never_lose_work)")
    args = parser.parse_args()

    strategy = phalanx.MultiWorkerMirroredStrategy()  # first: it joins the other workers before JAX starts
    print(f"worker {strategy.worker_index} is process {os.getpid()}: kill -9 {os.getpid()}", flush=True)
    data = digits.load().flat().head(args.rows)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build()
    backup = phalanx.callbacks.BackupAndRestore(args.backups, save_freq=datetime.timedelta(seconds=0.5))
    history = model.fit(
        data.x_train, data.y_train, batch_size=64, epochs=args.epochs, verbose=2, callbacks=[backup]
    ).history
    if strategy.is_chief:
        print(f"Final loss {history['loss'][-1]!r} after {len(history['loss'])} epochs")


if __name__ == "__main__":
    main()
