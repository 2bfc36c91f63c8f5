"""Measure what backups cost a training: time held up per save, and time per step beside the writing.

    python benchmarks/checkpoint.py            # a quiet machine, a fast disk and some thirty minutes
    python benchmarks/checkpoint.py --quick    # does it run? (its numbers mean nothing)
    python benchmarks/checkpoint.py --json     # the same as one JSON object

The state is the small transformer's with a weight of random numbers beside it, up to the size asked for; that
weight takes no part in the step. Each size has fresh processes; contenders take turns in one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from typing import Any

from fit_overhead import environment
from results import Goal, ratio_of

from phalanx.text import table

SIZES = (1, 100, 1000)  # MB
EVERY = 100  # updates
BEFORE, WINDOW = 50, 300  # steps of a turn that are not timed, and that are


@dataclass(frozen=True)
class Held:
    """What one save of a size holds up.

    Attributes:
        megabytes: Size of the state.
        save: Seconds for which each save held `fit`, without the step that was under way.
        copy: Seconds of one copy of the state to host memory, in turns with the saves.
        write: Seconds that the thread needed for each.
    """

    megabytes: int
    save: list[float]
    copy: list[float]
    write: list[float]


@dataclass(frozen=True)
class Beside:
    """Steps beside saves, and without.

    Attributes:
        megabytes: Size of the state.
        rhythm: How often a backup was written.
        ms_per_step: With and without backups, one number per round.
    """

    megabytes: int
    rhythm: str
    ms_per_step: dict[str, list[float]]


# ---- the children: the only code here that loads JAX


def build(megabytes: int, replicas: int) -> tuple[Any, Any, Any]:
    """Return the transformer with a weight beside it, and rows."""
    import phalanx

    # isort: split
    import keras
    from models import CASES

    case = CASES["transformer"]

    class Beside(keras.layers.Layer):
        """Carries a weight and passes its input on."""

        def build(self, shape: Any) -> None:
            count = max(1, megabytes * 1_000_000 // 4 - 300_000)
            self.weight = self.add_weight(
                shape=(count,), initializer=keras.initializers.RandomNormal(seed=0), trainable=False
            )

        def call(self, x: Any) -> Any:
            return x

    names = keras.distribution.list_devices()[:replicas]
    with phalanx.MirroredStrategy(names).scope():
        net = case.build()
        inputs = keras.Input(case.shape, dtype="int32")
        model = keras.Model(inputs, Beside()(net(inputs)))
        model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, case, case.rows()


def held(megabytes: int, replicas: int, rounds: int, folder: str) -> Held:
    """Time saves of `fit`, in turns with plain copies of the same state."""
    import numpy as np

    import phalanx
    from phalanx.training.backups import Backups
    from phalanx.training.execute import Runner

    model, case, (x, y) = build(megabytes, replicas)
    found = Held(megabytes, [], [], [])
    waited = [0.0]
    finish, save = Runner.finish, Backups._save

    def timed_finish(self: Any) -> None:
        began = time.perf_counter()
        finish(self)
        waited[0] += time.perf_counter() - began

    def timed_save(self: Any, taken: Any) -> None:
        waited[0], began = 0.0, time.perf_counter()
        save(self, taken)
        found.save.append(time.perf_counter() - began - waited[0])
        self._writer.drain()  # the next save is to wait for no disk: that is the overhead's part
        found.write.append(self._writer.cost)
        began = time.perf_counter()
        for each in [*model.variables, *model.optimizer.variables]:
            np.array(each.value)
        found.copy.append(time.perf_counter() - began)

    model.fit(x, y, batch_size=case.batch, verbose=0)
    Runner.finish, Backups._save = timed_finish, timed_save  # type: ignore[method-assign]
    backup = phalanx.callbacks.BackupAndRestore(folder, save_freq=case.steps // 2)
    model.fit(x, y, batch_size=case.batch, epochs=-(-rounds // 2), verbose=0, callbacks=[backup])
    return found


def beside(megabytes: int, replicas: int, rounds: int, seconds: float, folder: str) -> Beside:
    """Time steps with backups and without, in turns.

    Args:
        megabytes: Size of the state.
        replicas: Model copies.
        rounds: Turns of each.
        seconds: From one backup to the next; 0 for `EVERY` updates.
        folder: For backups.
    """
    import keras

    import phalanx

    class Clock(keras.callbacks.Callback):
        """Notes when each step was done."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

    model, case, (x, y) = build(megabytes, replicas)

    def turn(steps: int, *more: Any) -> list[float]:
        clock = Clock()
        epochs = -(-steps // case.steps)
        model.fit(x, y, batch_size=case.batch, epochs=epochs, verbose=0, callbacks=[clock, *more])
        return clock.ends

    ends = turn(60)
    one = (ends[-1] - ends[20]) / (len(ends) - 21)
    before, window = BEFORE, WINDOW
    if seconds:  # two backups within the window, and half of the time to the next after each
        before, window = int(seconds / 2 / one) + 1, int(2 * seconds / one) + 1
    freq = timedelta(seconds=seconds) if seconds else EVERY
    taken: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name in ("with", "without") if number % 2 else ("without", "with"):
            backup = phalanx.callbacks.BackupAndRestore(folder, save_freq=freq)
            ends = turn(before + window, *([backup] if name == "with" else []))
            taken[name].append((ends[before + window - 1] - ends[before - 1]) / window * 1e3)
    rhythm = f"every {seconds:g} s" if seconds else f"every {EVERY} updates"
    return Beside(megabytes, rhythm, taken)


def answer(job: dict[str, Any]) -> None:
    """Do the job that the parent gave and print the answer as the last line."""
    what = {"held": held, "beside": beside}[job.pop("what")]
    with tempfile.TemporaryDirectory(prefix="phalanx-checkpoint-", dir=job.pop("where")) as folder:
        print(json.dumps(asdict(what(**job, folder=folder))))


# ---- the parent


def child(job: dict[str, Any]) -> Any:
    """Run one job in a fresh process and return its JSON answer."""
    replicas = job["replicas"]
    settings = {
        "JAX_NUM_CPU_DEVICES": str(replicas),
        "KERAS_BACKEND": "jax",
        "NPROC": os.environ.get("NPROC", str(max(os.cpu_count() or 1, 2 * replicas))),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--job", json.dumps(job)],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            "Each measurement runs in a process that must end well.\n"
            f"  received: exit status {done.returncode} from {job}; its own words stand above\n"
            "  next:     python benchmarks/checkpoint.py --quick"
        )
    return json.loads(done.stdout.splitlines()[-1])


def goals(helds: Sequence[Held], besides: Sequence[Beside]) -> list[Goal]:
    """Hold the measurements against the bars: one copy and a half, and 3.5 % at 100 MB every 100 updates."""
    found = []
    for each in helds:
        ratio = ratio_of([save / copy for save, copy in zip(each.save, each.copy, strict=True)])
        found.append(
            Goal(f"{each.megabytes} MB: held up per save / one copy", ratio.median, ratio.error, 1.5, False)
        )
    for each in besides:
        if each.megabytes == 100 and "updates" in each.rhythm:
            ratio = overhead(each)
            found.append(
                Goal(f"100 MB: steps {each.rhythm} / without", ratio.median, ratio.error, 1.035, False)
            )
    return found


def overhead(each: Beside) -> Any:
    """Time per step with backups over that without, round by round."""
    pairs = zip(each.ms_per_step["with"], each.ms_per_step["without"], strict=True)
    return ratio_of([slow / fast for slow, fast in pairs])


def report(about: dict[str, Any], helds: Sequence[Held], besides: Sequence[Beside]) -> str:
    """Lay everything out as text."""
    holds = [
        (each.megabytes, *(f"{1e3 * median(values):.1f}" for values in (each.save, each.copy, each.write)))
        for each in helds
    ]
    steps = [
        (
            each.megabytes,
            each.rhythm,
            *(f"{median(v):.2f}" for v in each.ms_per_step.values()),
            overhead(each),
        )
        for each in besides
    ]
    checks = [
        (
            goal.what,
            f"{goal.measured:.3f}",
            "?" if goal.error is None else f"{goal.error:.3f}",
            f"<= {goal.bound}",
            "met" if goal.met else "missed",
        )
        for goal in goals(helds, besides)
    ]
    return "\n\n".join(
        [
            "\n".join(f"{name:12} {value}" for name, value in about.items()),
            "Milliseconds, median\n"
            + table(("state MB", "held up per save", "one copy", "written beside"), holds, align="rrrr"),
            "Milliseconds per step, median, and the ratio with its quartiles\n"
            + table(("state MB", "backup", "with", "without", "ratio"), steps, align="rlrrr"),
            table(("goal", "measured", "+-", "bar", "verdict"), checks, align="lrrll"),
        ]
    )


@contextmanager
def place(wanted: str | None) -> Iterator[str]:
    """The folder for backups: the one asked for, or one beside the temporary files."""
    if wanted is not None:
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-checkpoint-") as folder:
        yield folder


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--replicas", type=int, default=2, help="replicas, on CPU where nothing else is (2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="MB (1 100 1000)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (9)")
    parser.add_argument("--seconds", type=float, default=30.0, help="the second rhythm; 0: none (30)")
    parser.add_argument("--folder", help="where backups are written (the folder of temporary files)")
    parser.add_argument("--quick", action="store_true", help="1 MB, 1 round, no second rhythm: a smoke test")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.quick:
        args.sizes, args.rounds, args.seconds = [1], 1, 0.0
    if min(args.replicas, args.rounds, *args.sizes) < 1 or args.seconds < 0:
        parser.error(
            "--replicas, --rounds and --sizes start at 1, --seconds at 0.\n"
            f"  received: {args.replicas}, {args.rounds}, {args.sizes}, {args.seconds}\n"
            "  next:     python benchmarks/checkpoint.py --sizes 1 100"
        )
    return args


def main() -> None:
    """Measure and print; a child answers its job instead."""
    args = parse()
    if args.job:
        answer(args.job)
        return
    about = environment(args.replicas)
    helds, besides = [], []
    with place(args.folder) as where:
        for size in args.sizes:
            print(f"measuring {size} MB ...", file=sys.stderr, flush=True)
            job = {"megabytes": size, "replicas": args.replicas, "where": where}
            helds.append(Held(**child({"what": "held", **job, "rounds": args.rounds})))
            for seconds in (0.0, args.seconds) if args.seconds else (0.0,):
                rounds = max(1, args.rounds // 3) if seconds else args.rounds  # each is a minute and a half
                more = {"rounds": rounds, "seconds": seconds}
                besides.append(Beside(**child({"what": "beside", **job, **more})))
    if args.json:
        verdicts = [{**asdict(goal), "met": goal.met} for goal in goals(helds, besides)]
        results = {"held": [asdict(each) for each in helds], "beside": [asdict(each) for each in besides]}
        print(json.dumps({"environment": about, **results, "goals": verdicts}, indent=2))
    else:
        print(report(about, helds, besides))


if __name__ == "__main__":
    main()
