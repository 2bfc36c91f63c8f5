"""`phalanx run`: a script on N replicas of this machine."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import DeviceError, SettingError, message
from phalanx.host import accelerators, env, files, machine, procs

_TEACH = """\
what is set, and only where you have not set it yourself:
  KERAS_BACKEND=jax          Phalanx trains on Keras's JAX backend
  CPU replicas:
    JAX_PLATFORMS=cpu        no search for accelerators
    NPROC                    a thread pool large enough for all replicas to meet
  and for --replicas N, which wins over the environment:
    JAX_NUM_CPU_DEVICES=N    on a machine without an accelerator
    CUDA_VISIBLE_DEVICES     the first N of the GPUs that are visible

The script then replaces this process: its exit code, signals and output are its own.

examples:
  phalanx run --replicas 2 train.py --epochs 3      --epochs goes to the script
  phalanx run --replicas 8 -m pytest tests          a module instead of a script
"""


@dataclass(frozen=True)
class RunPlan:
    """What the script's environment will be, and one sentence that says so.

    Args:
        reason: What runs where, and why.
        changes: Variables to set.
    """

    reason: str
    changes: Mapping[str, str] = field(default_factory=dict)


def describe(commands: Any, name: str) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        name,
        help="run a script on N replicas of this machine",
        description="Run a script on N accelerators, or on N CPU replicas where there are none.",
        epilog=_TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="phalanx run [--replicas N] (script.py | -m module) [arguments ...]",
    )
    parser.add_argument(
        "--replicas", metavar="N", help="model copies (default: every accelerator, or one CPU replica)"
    )
    parser.add_argument("-m", dest="module", metavar="module", help="run a module, as python -m does")
    parser.set_defaults(rest=[])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut a command line into what is ours and what belongs to the script, which argparse must not touch.

    Example:
        >>> split(["--replicas", "2", "train.py", "--replicas", "7"])
        (['--replicas', '2'], ['train.py', '--replicas', '7'])
        >>> split(["-m", "pytest", "-x"])
        (['-m', 'pytest'], ['-x'])
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        if arguments[at] == "--":
            return list(arguments[:at]), list(arguments[at + 1 :])
        if arguments[at] == "-m":
            at += 2
            break
        at += 2 if arguments[at] == "--replicas" else 1
    return list(arguments[:at]), list(arguments[at:])


def act(options: argparse.Namespace) -> None:
    """Decide, say it in one line, and become the script."""
    replicas = _whole_number(options.replicas)
    arguments = _script_arguments(options.module, options.rest)
    environ = env.snapshot()
    plan = plan_run(replicas, environ, accelerators.look(), machine.cpu_count())
    print(f"phalanx: {plan.reason}", file=sys.stderr)
    procs.become_python(arguments, {**environ, **plan.changes})


def plan_run(
    replicas: int | None, environ: Mapping[str, str], found: accelerators.Accelerators, cpus: int
) -> RunPlan:
    """Decide the environment of the script.

    Args:
        replicas: What the user asked for, or None.
        environ: The user's environment.
        found: Accelerators of this machine.
        cpus: Cores.

    Returns:
        The plan.

    Raises:
        DeviceError: More replicas than accelerators.
        SettingError: Keras is told to use another backend.

    Example:
        >>> plan_run(2, {}, accelerators.Accelerators(), cpus=2).changes["JAX_NUM_CPU_DEVICES"]
        '2'
    """
    backend = environ.get("KERAS_BACKEND") or "jax"
    if backend != "jax":
        raise SettingError(
            message(
                "Phalanx trains Keras models on the JAX backend.",
                f"KERAS_BACKEND={backend}",
                "export KERAS_BACKEND=jax",
            )
        )
    changes = {"KERAS_BACKEND": "jax"}
    only_cpu = environ.get("JAX_PLATFORMS") == "cpu"
    if found.kind and found.usable and not only_cpu:
        return _on_accelerators(replicas, environ, found, changes)
    why = "no accelerator found"
    if found.kind:
        why = "JAX_PLATFORMS=cpu" if only_cpu else f"{found.count} {found.kind}s, but JAX's plugin is missing"
    if replicas is None:
        return RunPlan(f"CPU ({why}; --replicas N for N of them)", changes)
    if not environ.get("JAX_PLATFORMS"):
        changes["JAX_PLATFORMS"] = "cpu"
    if not environ.get("NPROC"):
        changes["NPROC"] = str(max(cpus, 2 * replicas))
    changes["JAX_NUM_CPU_DEVICES"] = str(replicas)
    asked = _asked_for(environ)
    note = f"; --replicas wins over {asked}" if asked and not asked.endswith(f"={replicas}") else ""
    return RunPlan(f"{replicas} CPU replica{'s'[: replicas != 1]} ({why}{note})", changes)


def _on_accelerators(
    replicas: int | None,
    environ: Mapping[str, str],
    found: accelerators.Accelerators,
    changes: dict[str, str],
) -> RunPlan:
    chosen = environ.get("CUDA_VISIBLE_DEVICES") if found.kind == "gpu" else None
    visible = [each.strip() for each in chosen.split(",")] if chosen else [str(i) for i in range(found.count)]
    replicas = len(visible) if replicas is None else replicas
    if replicas > len(visible):
        raise DeviceError(
            message(
                "Each replica has an accelerator of its own.",
                f"--replicas {replicas}, but {len(visible)} {found.kind}s are visible",
                f"phalanx run --replicas {len(visible)} ...   # or JAX_PLATFORMS=cpu for CPU replicas",
            )
        )
    if replicas < len(visible):
        if found.kind == "gpu":
            changes["CUDA_VISIBLE_DEVICES"] = ",".join(visible[:replicas])
        else:
            changes["TPU_VISIBLE_CHIPS"] = ",".join(visible[:replicas])
    return RunPlan(f"{replicas} of {len(visible)} {found.kind}s", changes)


def _asked_for(environ: Mapping[str, str]) -> str | None:
    """How the environment asks for a number of CPU devices, if it does."""
    if environ.get("JAX_NUM_CPU_DEVICES"):
        return f"JAX_NUM_CPU_DEVICES={environ['JAX_NUM_CPU_DEVICES']}"
    forced = re.search(r"--xla_force_host_platform_device_count=\d+", environ.get("XLA_FLAGS", ""))
    return forced.group(0) if forced else None


def _whole_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise SettingError(
            message(
                "A number of replicas is a whole number, 1 or more.",
                f"--replicas {text}",
                "phalanx run --replicas 2 train.py",
            )
        )
    return int(text)


def _script_arguments(module: str | None, rest: list[str]) -> list[str]:
    """What stands behind `python`: the script or module, then the rest untouched."""
    if module is not None:
        return ["-m", module, *rest]
    script = rest[0] if rest else None
    found = "nothing" if script is None else files.kind(script)
    if found == "folder" and files.kind(f"{script}/__main__.py") == "file":
        found = "file"
    if script is None or found != "file":
        where = "a folder" if found == "folder" else "not there"
        what = "no script" if script is None else f"{script!r}, which is {where}"
        raise SettingError(
            message("`phalanx run` needs a script.", what, "phalanx run --replicas 2 train.py")
        )
    # A path that starts with a dash must not be read as an option of Python's.
    return [f"./{script}" if script.startswith("-") else script, *rest[1:]]
