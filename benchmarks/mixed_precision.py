"""Measure what 16 bits gain or cost: step time and memory in float32, bfloat16 and float16, per device kind.

    python benchmarks/mixed_precision.py             # a quiet machine and some five minutes
    python benchmarks/mixed_precision.py --quick     # does it run? (its numbers mean nothing)
    python benchmarks/mixed_precision.py --json      # the same as one JSON object

From Python (with this folder on the path), `measure(CASES["mlp"])` returns the same numbers, one `Row` per
device kind and policy; `speed(rows, "cpu", "mixed_bfloat16")` says what a policy is worth on a device.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import fit_overhead
import jax
import keras
from models import CASES, Case

from phalanx.text import table
from phalanx.training import execute, home

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
MIB = 2.0**20


@dataclass(frozen=True)
class Row:
    """One network under one policy on one device.

    Attributes:
        device: Kind of device, such as "cpu".
        model: Name of the network.
        policy: Keras dtype policy.
        ms_per_step: One number per round.
        step_mib: Memory of one compiled step at its peak: arguments, results and temporaries, by the
            compiler's own account. It includes weights, optimizer slots and one batch.
    """

    device: str
    model: str
    policy: str
    ms_per_step: tuple[float, ...]
    step_mib: float

    @property
    def ms(self) -> float:
        """The median over the rounds."""
        return median(self.ms_per_step)


def measure(
    case: Case,
    policies: Sequence[str] = POLICIES,
    devices: Sequence[str] | None = None,
    rounds: int = 9,
    seconds: float = 0.5,
) -> list[Row]:
    """Time a network under several policies, which take turns on each device.

    Args:
        case: The network.
        policies: Keras dtype policies.
        devices: Keras device names; None for the first device of each kind that this machine has.
        rounds: Turns of each policy; the order rotates from round to round.
        seconds: About how long one turn takes; it is a whole number of epochs.

    Returns:
        One row per device and policy. Compiling is not in the times.
    """
    return [row for device in devices or kinds() for row in _on(device, case, policies, rounds, seconds)]


def kinds() -> list[str]:
    """Name the first device of each kind that JAX finds."""
    names = {}
    for platform in ("gpu", "tpu", "cpu"):
        try:
            names[platform] = f"{platform}:{jax.local_devices(backend=platform)[0].id}"
        except RuntimeError:  # no such backend
            continue
    return list(names.values())


def speed(rows: Sequence[Row], device: str, policy: str) -> float:
    """How many times as fast as float32 a policy is on a kind of device: median of the rounds' ratios."""
    by_policy = {row.policy: row for row in rows if row.device == device}
    pairs = zip(by_policy["float32"].ms_per_step, by_policy[policy].ms_per_step, strict=True)
    return median(whole / short for whole, short in pairs)


def _on(device: str, case: Case, policies: Sequence[str], rounds: int, seconds: float) -> list[Row]:
    x, y = case.rows()
    strategy = phalanx.OneDeviceStrategy(device)
    models = {policy: _compiled(case, policy, strategy) for policy in policies}
    once = {policy: _turn(model, case, x, y, 2) for policy, model in models.items()}  # compiles and settles
    once = {policy: _turn(model, case, x, y, 1) for policy, model in models.items()}
    epochs = {policy: max(1, round(seconds / took)) for policy, took in once.items()}
    taken: dict[str, list[float]] = {policy: [] for policy in policies}
    order = list(policies)
    for _ in range(rounds):
        for policy in order:
            took = _turn(models[policy], case, x, y, epochs[policy])
            taken[policy].append(took * 1e3 / (epochs[policy] * case.steps))
        order = order[1:] + order[:1]
    kind = device.split(":")[0]
    return [
        Row(kind, case.name, policy, tuple(taken[policy]), _memory(model, strategy, case, x, y))
        for policy, model in models.items()
    ]


def _compiled(case: Case, policy: str, strategy: phalanx.Strategy) -> keras.Model:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        with strategy.scope():
            return case.compiled()
    finally:
        keras.config.set_dtype_policy(before)


def _turn(model: keras.Model, case: Case, x: Any, y: Any, epochs: int) -> float:
    """Seconds of some epochs, with the garbage of earlier turns out of the way."""
    gc.collect()
    began = time.perf_counter()
    history = model.fit(x, y, batch_size=case.batch, epochs=epochs, verbose=0).history
    took = time.perf_counter() - began
    loss, skipped = history["loss"][-1], history.get("skipped_steps", [0])[-1]
    if not loss == loss or skipped > 1:
        raise SystemExit(
            "A step that is measured is a step that trains.\n"
            f"  received: loss {loss}, {skipped} steps skipped, {model.dtype_policy.name}\n"
            "  next:     python benchmarks/mixed_precision.py --models mlp"
        )
    return took


def _memory(model: keras.Model, strategy: phalanx.Strategy, case: Case, x: Any, y: Any) -> float:
    """MiB that the compiled training step needs at its peak."""
    batch = strategy.placement.place((x[: case.batch], y[: case.batch]), case.batch)
    step = home.running(model, home.home_of(model), "train", execute.TRAIN)
    lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([v.value for v in variables] for variables in (*lists, model.metrics_variables))
    counted = getattr(step, "counts", None)
    arguments = (
        (state, batch.arrays, batch.cut) if counted is None else (state, counted, batch.arrays, batch.cut)
    )
    program = step if counted is None else step.step
    used = program.lower(*arguments).compile().memory_analysis()
    sizes = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
    return (sizes - used.alias_size_in_bytes) / MIB


def report(about: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return one table per kind of device."""
    parts = ["\n".join(f"{name}: {value}" for name, value in about.items())]
    for device in dict.fromkeys(row.device for row in rows):
        mine = [row for row in rows if row.device == device]
        cells = [
            [
                row.model,
                row.policy,
                f"{row.ms:.2f}",
                f"{speed([r for r in mine if r.model == row.model], device, row.policy):.2f}",
                f"{row.step_mib:.1f}",
            ]
            for row in mine
        ]
        head = ["model", "policy", "ms per step", "speed, float32 = 1", "step memory, MiB"]
        parts.append(f"{device}\n{table(head, cells, align='llrrr')}")
    return "\n\n".join(parts)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--models", nargs="+", choices=list(CASES), default=list(CASES), help="networks (all)"
    )
    parser.add_argument("--devices", nargs="+", help="Keras device names (the first of each kind)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each policy (9)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of one turn, about (0.5)")
    parser.add_argument("--quick", action="store_true", help="2 short rounds of few steps: a smoke test")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    args = parser.parse_args(arguments)
    if args.rounds < 1 or args.seconds <= 0:
        parser.error(
            "--rounds starts at 1, --seconds is over 0.\n"
            f"  received: {args.rounds}, {args.seconds}\n"
            "  next:     python benchmarks/mixed_precision.py --rounds 9"
        )
    return args


def main() -> None:
    """Measure and print."""
    args = parse()
    rows: list[Row] = []
    for name in args.models:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        if args.quick:
            rows += measure(replace(CASES[name], steps=5), devices=args.devices, rounds=2, seconds=0.1)
        else:
            rows += measure(CASES[name], devices=args.devices, rounds=args.rounds, seconds=args.seconds)
    about = fit_overhead.environment(replicas=1)
    if args.json:
        print(json.dumps({"environment": about, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(report(about, rows))


if __name__ == "__main__":
    main()
