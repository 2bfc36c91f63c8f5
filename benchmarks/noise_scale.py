"""What `GradientNoiseScale(every=50)` costs: the same `fit` with and without it, taking turns.

phalanx run --replicas 2 benchmarks/noise_scale.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import jax
from models import CASES

from phalanx.text import table

EVERY = 50
BAR = 0.02


def rounds_of(name: str, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds per step of each round, without and with the callback."""
    case = CASES[name]
    x, y = case.rows()
    strategy = phalanx.MirroredStrategy()
    with strategy.scope():
        model = case.compiled()
    steps = -(-len(x) // case.batch)
    epochs = max(1, 2 * EVERY // steps)
    look = phalanx.callbacks.GradientNoiseScale(every=EVERY)
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * rounds + 2):
        callbacks = [look] if turn % 2 else []
        started = time.perf_counter()
        model.fit(x, y, batch_size=case.batch, epochs=epochs, verbose=0, callbacks=callbacks)
        if turn > 1:  # the first two compile
            found[turn % 2].append(1000 * (time.perf_counter() - started) / (steps * epochs))
    return found


def main() -> None:
    """Measure each network and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side (15)")
    args = parser.parse_args()
    rows = []
    for name in CASES:
        without, with_it = rounds_of(name, args.rounds)
        shares = [b / a - 1 for a, b in zip(without, with_it, strict=True)]
        cost = statistics.median(shares)
        rows.append(
            (
                name,
                f"{statistics.median(without):.2f}",
                f"{statistics.median(with_it):.2f}",
                f"{cost:+.1%}",
                "met" if cost <= BAR else "missed",
            )
        )
    print(
        f"JAX {jax.__version__}, {len(jax.devices())} replicas, a look every {EVERY} steps; bar: {BAR:.0%}\n"
    )
    print(table(("model", "ms without", "ms with", "cost", "bar"), rows, align="lrrrl"))


if __name__ == "__main__":
    main()
