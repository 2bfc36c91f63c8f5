"""Measure what `fit` under Phalanx costs next to a hand-written loop and to Keras's own `fit`.

    python benchmarks/fit_overhead.py            # a quiet machine and some ten minutes
    python benchmarks/fit_overhead.py --quick    # does it run? (its numbers mean nothing)
    python benchmarks/fit_overhead.py --json     # the same as one JSON object

This process only starts others and prints: each network is timed in one fresh process, where the
contenders of `contenders.py` take turns, and each measurement of memory has a fresh process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import importlib.metadata
import json
import os
import platform
import re
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import phalanx  # loads no JAX

# isort: split
from results import KERAS, PHALANX, Memory, Timing, goals, report

MODELS = ("mlp", "transformer", "cnn")
MIB = 1024.0


def environment(replicas: int) -> dict[str, Any]:
    """Say what was measured on: versions, processor, cores, load, date."""
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
        "keras": importlib.metadata.version("keras"),
        "phalanx": phalanx.__version__,
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "replicas": replicas,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# ---- the children: the only code here that loads JAX


def time_model(model: str, replicas: int, rounds: int, seconds: float) -> Timing:
    """Time all contenders on one network in this process."""
    from contenders import compare
    from models import CASES

    return compare(CASES[model], _devices(replicas), rounds, seconds)


def memory_of(model: str, contender: str, replicas: int) -> dict[str, float]:
    """Measure how much memory one contender adds to this fresh process, in MiB.

    Returns:
        "with compile": the highest resident memory from building the model to the end of three epochs, less
        what the process held before (libraries and devices). "training": the same for three more epochs,
        after the compiler's freed memory went back to the system and the peak counter was set back; only
        where Linux allows that.
    """
    from contenders import keras_fit, phalanx_fit
    from models import CASES

    devices = _devices(replicas)
    make = {PHALANX: phalanx_fit, KERAS: keras_fit}[contender]
    before = _resident("VmRSS")
    train = make(CASES[model], devices)[0].train
    train(3)
    used = {"with compile": _resident("VmHWM") - before}
    if _reset_peak():
        train(3)
        used["training"] = _resident("VmHWM") - before
    return used


def _devices(replicas: int) -> list[str]:
    """Name the first devices of this machine; the parent has made CPU ones."""
    import keras

    names = keras.distribution.list_devices()
    if len(names) < replicas:
        raise SystemExit(
            "Each replica needs a device of its own.\n"
            f"  received: --replicas {replicas}, and this machine has {names}\n"
            f"  next:     python benchmarks/fit_overhead.py --replicas {len(names)}"
        )
    return names[:replicas]


def _resident(field: str) -> float:
    """MiB of this process from the kernel's books; elsewhere the peak since its start."""
    status = Path("/proc/self/status")
    if not status.exists():
        unit = MIB * MIB if sys.platform == "darwin" else MIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / MIB


def _reset_peak() -> bool:
    """Give freed memory back and set the peak counter to what is left; False where the system refuses."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (AttributeError, OSError):
        return False
    return True


# ---- the parent


def child(job: dict[str, Any], replicas: int) -> Any:
    """Run one job in a fresh process with `replicas` CPU devices and return its JSON answer."""
    pool = str(max(os.cpu_count() or 1, 2 * replicas))  # room for the collectives of queued steps
    settings = {
        "JAX_NUM_CPU_DEVICES": str(replicas),
        "KERAS_BACKEND": "jax",
        "NPROC": os.environ.get("NPROC", pool),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": re.sub(
            r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")
        ),
    }
    if job["what"] == "memory":
        settings["MALLOC_ARENA_MAX"] = "1"  # the C library's pools per thread are chance, not need
    done = subprocess.run(
        [sys.executable, __file__, "--job", json.dumps({**job, "replicas": replicas})],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            "Each measurement runs in a process that must end well.\n"
            f"  received: exit status {done.returncode} from {job}; its own words stand above\n"
            "  next:     pip install -e . && python benchmarks/fit_overhead.py --quick"
        )
    return json.loads(done.stdout.splitlines()[-1])


def answer(job: dict[str, Any]) -> None:
    """Do the job that the parent gave and print the answer as the last line."""
    what = job.pop("what")
    print(json.dumps(asdict(time_model(**job)) if what == "time" else memory_of(**job)))


def measure_memory(model: str, replicas: int, repeats: int) -> Memory:
    """Return MiB by contender and kind, one number per fresh process; the contenders alternate."""
    seen: Memory = {PHALANX: {}, KERAS: {}}
    for _ in range(repeats):
        for name, kinds in seen.items():
            used = child({"what": "memory", "model": model, "contender": name}, replicas)
            for kind, size in used.items():
                kinds.setdefault(kind, []).append(size)
    return seen


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--replicas", type=int, default=2, help="replicas, on CPU where nothing else is (2)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="networks (all)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender (15)")
    parser.add_argument("--seconds", type=float, default=0.7, help="seconds of one turn, about (0.7)")
    parser.add_argument(
        "--memory-repeats", type=int, default=5, help="processes per memory figure; 0: none (5)"
    )
    parser.add_argument("--quick", action="store_true", help="2 short rounds, 1 memory repeat: a smoke test")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.quick:
        args.rounds, args.seconds, args.memory_repeats = 2, 0.1, min(1, args.memory_repeats)
    if min(args.replicas, args.rounds) < 1 or args.seconds <= 0 or args.memory_repeats < 0:
        parser.error(
            "--replicas and --rounds start at 1, --seconds is over 0, --memory-repeats at least 0.\n"
            f"  received: {args.replicas}, {args.rounds}, {args.seconds}, {args.memory_repeats}\n"
            "  next:     python benchmarks/fit_overhead.py --rounds 15"
        )
    return args


def main() -> None:
    """Measure and print; a child answers its job instead."""
    args = parse()
    if args.job:
        answer(args.job)
        return
    about = environment(args.replicas)
    timings: list[Timing] = []
    memory: dict[str, Memory] = {}
    for model in args.models:
        print(f"measuring {model} ...", file=sys.stderr, flush=True)
        job = {"what": "time", "model": model, "rounds": args.rounds, "seconds": args.seconds}
        timings.append(Timing(**child(job, args.replicas)))
        if args.memory_repeats:
            memory[model] = measure_memory(model, args.replicas, args.memory_repeats)
    checks = goals(timings, memory)
    if args.json:
        results = {"timings": [asdict(timing) for timing in timings], "memory_mib": memory}
        verdicts = [{**asdict(goal), "met": goal.met} for goal in checks]
        print(json.dumps({"environment": about, **results, "goals": verdicts}, indent=2))
    else:
        print(report(about, timings, memory, checks))


if __name__ == "__main__":
    main()
