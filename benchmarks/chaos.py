"""Bring about at least 100 faults drawn from a seed, and compare every end with the undisturbed run.

    python benchmarks/chaos.py                  # 100 faults, 4 in a run; some forty minutes on 2 cores
    python benchmarks/chaos.py --faults 400 --seed 7 --model mlp
    python benchmarks/chaos.py --quick          # does it run?
    python benchmarks/chaos.py --json           # the same as one JSON object

Two workers train under the launcher; `phalanx.testing.chaos` kills, stops and terminates them and harms their
backups. It exits with 1 if a run did not come to its end, or ended with other numbers in any bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from fit_overhead import environment
from recoveries import Run, recoveries, repeated, report

from phalanx.host import accelerators, env
from phalanx.launch.plan import plan_workers
from phalanx.launch.supervise import Settings, supervise
from phalanx.restart import Policy
from phalanx.testing.faults import ANYWHERE, VARIABLE, Script, random_faults

WORKERS = 2
STEPS = 100  # of a run, about
SAVE_FREQ = 10  # steps from one backup to the next
JOB = Path(__file__).with_name("chaos_job.py")


def supervised(arguments: list[str]) -> int:
    """Run the job under the launcher, with a policy that lets faults follow each other closely."""
    settings = Settings(grace=3, policy=Policy(max_restarts=10_000, backoff=0.1, longest=0.2, short=0))
    environ = {**env.snapshot(), "JAX_PLATFORMS": "cpu"}
    plan = plan_workers(WORKERS, 1, environ, accelerators.Accelerators(), os.cpu_count() or 1)
    return supervise(arguments, plan, environ, settings)


def run(folder: Path, job: list[str], script: Script, limit: float) -> tuple[int, list[float], str]:
    """Run the job once.

    Returns:
        The launcher's exit code, when it said that all start again, and what stood on standard error.
    """
    said: list[str] = []
    restarts = []
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "--supervise", *job],
        cwd=folder,
        env={**os.environ, VARIABLE: script.to_json(), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as launcher:
        assert launcher.stderr is not None
        deadline = threading.Timer(limit, launcher.terminate)
        deadline.start()
        for line in launcher.stderr:
            said.append(line)
            if line.startswith("phalanx: worker ") and "restart" in line:
                restarts.append(time.time())
        deadline.cancel()
        return launcher.wait(), restarts, "".join(said)


def outcome(folder: Path, script: Script, code: int, restarts: list[float], wanted: dict[str, Any]) -> Run:
    """Read the notes of a run and compare its end."""
    notes = Path(script.notes)
    faults = [json.loads(each.read_text()) for each in sorted(notes.glob("fault-*"))]
    lines = (notes / "worker-0.jsonl").read_text().splitlines()
    events = [json.loads(each) for each in lines]
    right = None
    if code == 0:
        with np.load(folder / "end.npz") as end:
            right = end.keys() == wanted.keys() and all(
                np.array_equal(end[name], value) for name, value in wanted.items()
            )
    return Run(recoveries(faults, restarts, events), *repeated(events), right)


def measure(args: argparse.Namespace) -> list[Run]:
    """Run undisturbed, then under faults until so many have happened."""
    from models import CASES

    per_epoch = CASES[args.model].steps
    epochs = max(2, STEPS // per_epoch)
    job = [str(JOB), args.model, str(epochs), str(SAVE_FREQ)]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="phalanx-chaos-") as name:
        place = Path(name)
        wanted: dict[str, Any] = {}
        happened, number = 0, 0
        while happened < args.faults:
            folder = place / f"run-{number}"
            folder.mkdir()
            count = min(args.in_a_run, args.faults - happened) if number else 0
            faults = random_faults(
                args.seed + number,
                count,
                workers=WORKERS,
                steps=max(2, epochs * per_epoch - SAVE_FREQ),
                kinds=args.kinds,
            )
            script = Script(faults, str(folder / "notes"), str(folder / "backups"))
            code, restarts, said = run(folder, job, script, 120.0 * (1 + count))
            if number == 0:
                if code:
                    raise SystemExit(f"The undisturbed run ends well.\n  received: exit code {code}\n{said}")
                with np.load(folder / "end.npz") as end:
                    wanted = dict(end)
            else:
                runs.append(outcome(folder, script, code, restarts, wanted))
                happened += max(1, len(runs[-1].recoveries))
                if not runs[-1].right:
                    print(said, file=sys.stderr)
                drawn = ", ".join(f"{each.what} of worker {each.worker} at {each.step}" for each in faults)
                verdict = {True: "right", False: "WRONG", None: f"ended with {code}"}[runs[-1].right]
                print(f"run {number}: {drawn}: {verdict}", file=sys.stderr, flush=True)
            number += 1
    return runs


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--faults", type=int, default=100, help="how many, at least (100)")
    parser.add_argument("--in-a-run", type=int, default=4, help="faults of one run (4)")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn from (0)")
    parser.add_argument("--model", choices=("mlp", "transformer", "cnn"), default="transformer")
    parser.add_argument(
        "--kinds", nargs="+", choices=ANYWHERE, default=list(ANYWHERE), help="kinds of faults (all)"
    )
    parser.add_argument("--quick", action="store_true", help="2 faults: a smoke test")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(arguments)
    if args.quick:
        args.faults, args.in_a_run = 2, 2
    if min(args.faults, args.in_a_run) < 1 or args.in_a_run > STEPS // 4:
        parser.error(
            f"--faults starts at 1, --in-a-run is 1 to {STEPS // 4}.\n"
            f"  received: {args.faults}, {args.in_a_run}\n"
            "  next:     python benchmarks/chaos.py --faults 100"
        )
    return args


def main() -> None:
    """Measure and print; a child runs the launcher instead."""
    if sys.argv[1:2] == ["--supervise"]:
        raise SystemExit(supervised(sys.argv[2:]))
    args = parse(sys.argv[1:])
    about = environment(WORKERS)
    runs = measure(args)
    if args.json:
        print(json.dumps({"environment": about, "runs": [asdict(each) for each in runs]}, indent=2))
    else:
        print("\n".join(f"{key}: {value}" for key, value in about.items()), report(runs), sep="\n\n")
    if not all(each.right for each in runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
