"""Two workers on this machine: Phalanx's `fit` against a hand-written loop, PyTorch's DDP and tf.distribute.

    make bench-workers                          # a quiet machine and a quarter of an hour
    python benchmarks/multi_worker.py --smoke   # does it run? (its numbers mean nothing)

This process loads no engine. It starts every contender of `peers/` once per network, two processes each, and
gives them turns over a socket: one trains, all others wait. The order rotates from round to round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from fit_overhead import environment

# isort: split
from results import Goal, Timing, table
from tasks import TASKS
from turns import Stage, Start, free_ports

WORKERS = 2
MODELS = ("mlp", "transformer")
PHALANX, REPLICA, DDP, TF = "phalanx", "phalanx, replica view", "torch DDP", "tf.distribute"
HAND, HAND_EACH = "hand-written, flat", "hand-written, each"
NEEDS = {DDP: ("torch",), TF: ("tensorflow", "tf_keras")}
SCRIPTS: dict[str, list[str]] = {
    PHALANX: ["phalanx_fit.py"],
    REPLICA: ["phalanx_fit.py", "--view", "replica"],
    HAND: ["hand_written.py"],
    HAND_EACH: ["hand_written.py", "--sums", "each"],
    DDP: ["ddp.py"],
    TF: ["tf_distribute.py"],
}
HERE = Path(__file__).parent
ONE_THREAD = {  # every worker computes in one thread, whatever it is made with
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": str(HERE),
}


def start_of(name: str, model: str, driver: str, peers: str) -> Start:
    """How a contender starts: Phalanx under its launcher, the others as two that know their place."""
    script, *own = SCRIPTS[name]
    arguments = [str(HERE / "peers" / script), *own, "--model", model, "--name", name, "--driver", driver]
    base = {
        key: value for key, value in os.environ.items() if key not in ("TF_CONFIG", "XLA_FLAGS")
    } | ONE_THREAD
    if name in (PHALANX, REPLICA):
        command = [sys.executable, "-m", "phalanx", "run", "--workers", str(WORKERS), *arguments]
        return Start(name, [command], [base], WORKERS)
    python = peers if name in NEEDS else sys.executable
    addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]
    places = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}} for i in range(WORKERS)
    ]
    environments = [{**base, "TF_CONFIG": json.dumps(place)} for place in places]
    return Start(name, [[python, *arguments]] * WORKERS, environments, WORKERS)


def missing(name: str, peers: str) -> list[str]:
    """Packages that a contender needs and the peers' environment lacks."""
    look = (
        "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    )
    found = subprocess.run(
        [peers, "-c", look, *NEEDS.get(name, ())], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    return found.stdout.split()


def compare(
    model: str, names: list[str], peers: str, rounds: int, seconds: float, folder: Path
) -> tuple[Timing, dict[str, list[float]], dict[str, Any]]:
    """Time the contenders on one network.

    Returns:
        Milliseconds per step of each contender and round, CPU milliseconds of both workers likewise, and what
        each said of its versions.
    """
    task = TASKS[model]
    with Stage(folder) as stage:
        for name in names:
            say(f"{model}: {name} warms up")
            stage.add(start_of(name, model, stage.address, peers))
        contenders = stage.contenders
        if len({contender.hello["rows"] for contender in contenders}) != 1:
            raise SystemExit("all contenders train on the same rows, and these do not")
        first = min(contender.turn(1)["seconds"] for contender in contenders)
        epochs = max(1, round(seconds / first))
        taken: dict[str, list[float]] = {name: [] for name in names}
        busy: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            say(f"{model}: round {number + 1} of {rounds}, {epochs} epochs a turn")
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                answer = contender.turn(epochs)
                for kept, what in ((taken, "seconds"), (busy, "cpu_seconds")):
                    kept[contender.start.name].append(1e3 * answer[what] / answer["steps"])
        versions = {contender.start.name: contender.hello["versions"] for contender in contenders}
    return Timing(model, task.batch, epochs * task.steps, taken, None), busy, versions


def best_hand(timing: Timing) -> str | None:
    """The faster of the hand-written loops that ran."""
    ran = [name for name in (HAND, HAND_EACH) if name in timing.ms_per_step]
    return min(ran, key=lambda name: median(timing.ms_per_step[name]), default=None)


def goals(timings: list[Timing]) -> list[Goal]:
    """Hold the speeds against the bars: 0.95 of the loop; on 784-100-10 1.3 of DDP and 2 of tf.distribute."""
    found = []
    for timing in timings:
        bars = [(best_hand(timing), 0.95)]
        bars += [(DDP, 1.3), (TF, 2.0)] if timing.model == "mlp" else []
        for than, bar in bars:
            if than in timing.ms_per_step:
                speed = timing.speed(PHALANX, than=than)
                found.append(Goal(f"{timing.model}: phalanx / {than}", speed.median, speed.error, bar, True))
    return found


def report(
    about: dict[str, Any],
    timings: list[Timing],
    busy: dict[str, dict[str, list[float]]],
    checks: list[Goal],
) -> str:
    """Lay everything out as text."""
    parts = ["\n".join(f"{name:12} {value}" for name, value in about.items())]
    for timing in timings:
        rows = [
            [
                name,
                f"{median(taken):.2f}",
                f"{min(taken):.2f}-{max(taken):.2f}",
                f"{median(busy[timing.model][name]):.2f}",
                str(timing.speed(PHALANX, than=name)),
            ]
            for name, taken in timing.ms_per_step.items()
        ]
        parts.append(
            f"{timing.model}: {WORKERS} workers, batch {timing.batch}, {timing.steps} steps a turn\n"
            + table(["contender", "ms a step", "range", "CPU ms of both", "phalanx's speed / its"], rows)
        )
    verdicts = [
        [
            goal.what,
            f"{goal.measured:.3f}",
            "?" if goal.error is None else f"{goal.error:.3f}",
            f">= {goal.bound:.2f}",
            "met" if goal.met else "missed",
        ]
        for goal in checks
    ]
    parts.append(table(["goal", "measured", "+-", "bar", "verdict"], verdicts))
    return "\n\n".join(parts)


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="networks (both)")
    parser.add_argument(
        "--contenders", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS), help="who (all)"
    )
    parser.add_argument("--peers", default=sys.executable, help="the Python that has torch and tf_keras")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender (15)")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="seconds of the fastest one's turn, about (1)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/multi_worker.json"), help="the JSON file")
    parser.add_argument(
        "--smoke", action="store_true", help="784-100-10 alone, 2 short rounds, no replica view"
    )
    args = parser.parse_args(arguments)
    if args.smoke:
        args.models, args.rounds, args.seconds = ["mlp"], 2, 0.1
        args.contenders = [name for name in args.contenders if name not in (REPLICA, HAND_EACH)]
    return args


def main() -> None:
    """Measure and print."""
    args = parse()
    about = {**environment(1), "workers": WORKERS, "threads": "1 a worker"}
    absent = {name: lacks for name in args.contenders if (lacks := missing(name, args.peers))}
    names = [name for name in args.contenders if name not in absent]
    for name, lacks in absent.items():
        say(f"{name} does not take part: no {', '.join(lacks)} here (make bench-workers installs it)")
    timings, busy, versions = [], {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            timing, busy[model], versions = compare(
                model, names, args.peers, args.rounds, args.seconds, Path(folder)
            )
            timings.append(timing)
    checks = goals(timings)
    about |= {name: " ".join(f"{k} {v}" for k, v in said.items()) for name, said in versions.items()}
    print(report(about, timings, busy, checks))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(
        json.dumps(
            {
                "environment": about,
                "ended": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
                "missing": absent,
                "timings": [{**asdict(timing), "cpu_ms_per_step": busy[timing.model]} for timing in timings],
                "goals": [{**asdict(goal), "met": goal.met} for goal in checks],
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
