"""`phalanx run`: a script on N replicas of this machine, in one process or in several workers."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any

from phalanx.errors import SettingError, message
from phalanx.host import accelerators, env, files, machine, procs
from phalanx.launch.on_ray import RayJob, supervise_on_ray
from phalanx.launch.plan import WorkersPlan, plan_workers
from phalanx.launch.replicas import RunPlan, plan_run
from phalanx.launch.supervise import Settings, supervise
from phalanx.restart import PREEMPTED, Policy

_TEACH = f"""\
what is set, and only where you have not set it yourself:
  KERAS_BACKEND=jax          Phalanx trains on Keras's JAX backend
  with CPU replicas:
    JAX_PLATFORMS=cpu        JAX does not look for accelerators
    NPROC                    threads enough for all replicas to meet (twice N, or the cores)
  and what --replicas N sets, also over a value of yours:
    JAX_NUM_CPU_DEVICES=N    where there is no accelerator
    CUDA_VISIBLE_DEVICES     the first N of the GPUs that you made visible

Without --workers the script then replaces this process: its exit code, signals and output are its own.
To develop on CPU replicas though there is a GPU, set JAX_PLATFORMS=cpu.

with --workers N, N processes run the script, each with its own
  TF_CONFIG                  its place among 127.0.0.1:port of all workers
  CUDA_VISIBLE_DEVICES       its share of the GPUs that you made visible
  XLA_PYTHON_CLIENT_MEM_FRACTION   its share of a GPU's memory, where workers share one
  PYTHONUNBUFFERED=1         you see a line when it is printed
and with --max-restarts, where you have not set it yourself,
  JAX_COMPILATION_CACHE_DIR  a private folder: a restart compiles nothing twice
Worker 0, the chief, prints as if it ran alone, progress bar included; lines of the others begin with
[worker 1]. The first worker that fails ends the run: its exit code is the command's, 128 + n for
signal n, and the last lines of its standard error come last. Ctrl-C (130) and SIGTERM (143) end every
worker and all that it started, with SIGKILL after the grace time. A worker that leaves with code {PREEMPTED}
was preempted: with --max-restarts all start again without counting; without, {PREEMPTED} is the command's
code. No worker reads standard input.

with --on ray, the workers are placed on the nodes of a Ray cluster, all at once or none: one CPU for each,
and a GPU for each replica where the cluster has some. Output, exit codes, Ctrl-C and restarts are as above.
The script is at the same path on every node; variables named KERAS_*, JAX_*, XLA_*, NCCL_*, TF_CPP_*, NPROC
and PYTHONPATH go with it. Ray is installed with: pip install 'phalanx[ray]'

examples:
  phalanx run train.py                              every accelerator, or one CPU replica
  phalanx run --replicas 2 train.py --epochs 3      --epochs goes to the script
  phalanx run --workers 2 --replicas 2 train.py     two processes, two replicas each
  phalanx run --on ray --workers 4 train.py         four processes on the nodes of a Ray cluster
  phalanx run --replicas 8 -m pytest tests          a module instead of a script
  phalanx run -- -odd-name.py                       a script whose name starts with a dash
"""

_RAY = {"--on": "--on ray", "--address": "--on ray --address auto"}
_EXAMPLES = {"--max-restarts": "--max-restarts 3", "--grace": "--grace 5", "--port": "--port 7000"}
_TAKES_A_VALUE = ("--replicas", "--workers", *_RAY, *_EXAMPLES)
_WORKERS, _PORTS = 1024, 65_535


def describe(commands: Any, name: str) -> None:
    """Add this command to the parser.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
        name: The word on the command line.
    """
    parser = commands.add_parser(
        name,
        help="run a script on N replicas of this machine",
        description="Run a script on N accelerators, or on N CPU replicas where there are none.",
        epilog=_TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="phalanx run [options] (script.py | -m module) [arguments ...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--replicas",
        metavar="N",
        help="model copies, of each worker (default: every accelerator, or one CPU replica)",
    )
    parser.add_argument("--workers", metavar="N", help="processes (default: this one becomes the script)")
    parser.add_argument(
        "--max-restarts", metavar="K", help="failures after which all workers start again (default: 0)"
    )
    parser.add_argument("--grace", metavar="S", help="seconds from SIGTERM to SIGKILL (default: 5)")
    parser.add_argument(
        "--port", metavar="P", help="port of worker 0, the next for the others (default: free ones)"
    )
    parser.add_argument("--on", metavar="ray", help="where workers run (default: on this machine)")
    parser.add_argument(
        "--address", metavar="A", help="the Ray cluster's address (default: the one it finds)"
    )
    parser.add_argument("-m", dest="module", metavar="module", help="run a module, as python -m does")
    parser.set_defaults(rest=[])


def split(
    arguments: Sequence[str], takes_a_value: Sequence[str] = _TAKES_A_VALUE
) -> tuple[list[str], list[str]]:
    """Cut a command line into what is ours and what belongs to the script, which argparse must not touch.

    Args:
        arguments: What stands behind `phalanx run`.
        takes_a_value: Our options with a value.

    Returns:
        Our options; the script with its arguments (or a module's arguments, where `-m` is ours).

    Example:
        >>> split(["--replicas", "2", "train.py", "--replicas", "7"])
        (['--replicas', '2'], ['train.py', '--replicas', '7'])
        >>> split(["-m", "pytest", "-x"])
        (['-m', 'pytest'], ['-x'])
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        word = arguments[at]
        if word == "--":
            return list(arguments[:at]), list(arguments[at + 1 :])
        if word.startswith("-m"):
            at += 2 if word == "-m" else 1
            break
        at += 2 if word in takes_a_value else 1
    return list(arguments[:at]), list(arguments[at:])


def act(options: argparse.Namespace) -> None:
    """Decide, say it in one line, and become the script or supervise its workers.

    Args:
        options: The parsed command line, with `rest` untouched.
    """
    replicas = _whole(options.replicas, "--replicas")
    workers = _whole(options.workers, "--workers", most=_WORKERS)
    settings = _settings(options, workers)
    arguments = _script_arguments(options.module, options.rest)
    environ = env.snapshot()
    if _on_ray(options, workers):
        script = None if options.module else options.rest[0]
        job = RayJob(
            arguments=arguments,
            script=script,
            workers=workers or 1,
            replicas=replicas,
            address=options.address,
        )
        raise SystemExit(supervise_on_ray(job, environ, settings))
    found, cpus = accelerators.look(), machine.cpu_count()
    if workers is None:
        plan = plan_run(replicas, environ, found, cpus)
        _say(plan)
        procs.become_python(arguments, {**environ, **plan.changes})
    several = plan_workers(workers, replicas, environ, found, cpus)
    _say(several)
    raise SystemExit(supervise(arguments, several, environ, settings))


def _on_ray(options: argparse.Namespace, workers: int | None) -> bool:
    if options.on is None and options.address is None:
        return False
    received = None
    if options.on != "ray":
        received = f"--on {options.on}" if options.on else f"--address {options.address} without --on"
    elif workers is None:
        received = "--on ray without --workers"
    elif options.port is not None:
        received = f"--on ray --port {options.port}: ports are free ones of each node"
    if received is not None:
        raise SettingError(
            message(
                "Workers run on this machine or on a Ray cluster.",
                received,
                "phalanx run --on ray --workers 2 train.py",
            )
        )
    return True


def _say(plan: RunPlan | WorkersPlan) -> None:
    if plan.warning:
        print(f"phalanx: warning: {plan.warning}", file=sys.stderr)
    print(f"phalanx: {plan.reason}", file=sys.stderr, flush=True)


def _settings(options: argparse.Namespace, workers: int | None) -> Settings:
    """How workers are supervised; without workers, these options would do nothing."""
    if workers is None:
        given = (options.max_restarts, options.grace, options.port)
        for name, value in zip(_EXAMPLES, given, strict=True):
            if value is not None:
                raise SettingError(
                    message(
                        f"{name} is about workers.",
                        f"{name} {value} without --workers",
                        f"phalanx run --workers 2 {_EXAMPLES[name]} train.py",
                    )
                )
        return Settings()
    restarts = _whole(options.max_restarts, "--max-restarts", least=0)
    port = _whole(options.port, "--port", most=_PORTS + 1 - workers)
    return Settings(grace=_seconds(options.grace), port=port, policy=Policy(max_restarts=restarts or 0))


def whole(
    text: str | None, option: str, paste: str, *, least: int = 1, most: int | None = None
) -> int | None:
    """The whole number of an option.

    Args:
        text: Its value, or None where it is not given.
        option: Its name.
        paste: The next line to type, where the value is none.
        least: Smallest number allowed.
        most: Largest number allowed, if there is one.

    Returns:
        The number, or None where the option is not given.

    Raises:
        SettingError: Not a whole number, or outside the range.
    """
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and least <= int(text) <= (int(text) if most is None else most):
        return int(text)
    rule = f"{least} or more" if most is None else f"{least} to {most}"
    raise SettingError(
        message(f"The value of {option} is a whole number, {rule}.", f"{option} {text}", paste)
    )


def _whole(text: str | None, option: str, *, least: int = 1, most: int | None = None) -> int | None:
    pasted = f"{option} 2" if option in ("--replicas", "--workers") else f"--workers 2 {_EXAMPLES[option]}"
    return whole(text, option, f"phalanx run {pasted} train.py", least=least, most=most)


def _seconds(text: str | None) -> float:
    if text is None:
        return Settings().grace
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or float(text) > 3600:
        raise SettingError(
            message(
                "The grace time is a number of seconds, 0 to 3600.",
                f"--grace {text}",
                f"phalanx run --workers 2 {_EXAMPLES['--grace']} train.py",
            )
        )
    return float(text)


def _script_arguments(module: str | None, rest: list[str]) -> list[str]:
    """What stands behind `python`: the script or module, then the rest untouched."""
    if module is not None:
        return ["-m", module, *rest]
    if not rest:
        received = "no script"
    elif files.kind(rest[0]) == "nothing":
        received = f"{rest[0]!r}, which is not there"
    elif files.kind(rest[0]) == "folder" and files.kind(f"{rest[0]}/__main__.py") == "nothing":
        received = f"{rest[0]!r}, which is a folder without a __main__.py"
    else:
        return ["--", *rest]  # behind it, Python takes no name for an option
    raise SettingError(message("`phalanx run` runs a script.", received, "phalanx run --replicas 2 train.py"))
