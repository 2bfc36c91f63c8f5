"""`phalanx run`: a script on N replicas of this machine."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import DeviceError, SettingError, UnsupportedError, message
from phalanx.host import accelerators, env, files, machine, procs

_TEACH = """\
what is set, and only where you have not set it yourself:
  KERAS_BACKEND=jax          Phalanx trains on Keras's JAX backend
  with CPU replicas:
    JAX_PLATFORMS=cpu        JAX does not look for accelerators
    NPROC                    threads enough for all replicas to meet (twice N, or the cores)
  and what --replicas N sets, also over a value of yours:
    JAX_NUM_CPU_DEVICES=N    where there is no accelerator
    CUDA_VISIBLE_DEVICES     the first N of the GPUs that you made visible

The script then replaces this process: its exit code, signals and output are its own.
To develop on CPU replicas though there is a GPU, set JAX_PLATFORMS=cpu.

examples:
  phalanx run train.py                              every accelerator, or one CPU replica
  phalanx run --replicas 2 train.py --epochs 3      --epochs goes to the script
  phalanx run --replicas 8 -m pytest tests          a module instead of a script
  phalanx run -- -odd-name.py                       a script whose name starts with a dash
"""

_TAKES_A_VALUE = ("--replicas",)
_MANY = 64
_VISIBLE = {"NVIDIA GPU": "CUDA_VISIBLE_DEVICES", "AMD GPU": "HIP_VISIBLE_DEVICES"}
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}  # chips of one process -> their grid


@dataclass(frozen=True)
class RunPlan:
    """What the script's environment will be, and one sentence that says so.

    Args:
        reason: What runs where, and why.
        changes: Variables to set.
        warning: What to think about before it runs, if anything.
    """

    reason: str
    changes: Mapping[str, str] = field(default_factory=dict)
    warning: str | None = None


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
        usage="phalanx run [--replicas N] (script.py | -m module) [arguments ...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--replicas", metavar="N", help="model copies (default: every accelerator, or one CPU replica)"
    )
    parser.add_argument("-m", dest="module", metavar="module", help="run a module, as python -m does")
    parser.set_defaults(rest=[])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut a command line into what is ours and what belongs to the script, which argparse must not touch.

    Args:
        arguments: What stands behind `phalanx run`.

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
        at += 2 if word in _TAKES_A_VALUE else 1
    return list(arguments[:at]), list(arguments[at:])


def act(options: argparse.Namespace) -> None:
    """Decide, say it in one line, and become the script.

    Args:
        options: The parsed command line, with `rest` untouched.
    """
    replicas = _whole_number(options.replicas)
    arguments = _script_arguments(options.module, options.rest)
    environ = env.snapshot()
    plan = plan_run(replicas, environ, accelerators.look(), machine.cpu_count())
    if plan.warning:
        print(f"phalanx: warning: {plan.warning}", file=sys.stderr)
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
        SettingError: The environment asks for another Keras backend, or for a platform that is not there.
        UnsupportedError: A part of a TPU host that cannot be cut out.

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
    platforms = [each for each in environ.get("JAX_PLATFORMS", "").split(",") if each]
    if platforms[:1] == ["cpu"]:
        return _on_cpu(replicas, environ, f"JAX_PLATFORMS={','.join(platforms)}", cpus)
    if found.kind is None:
        why = "no accelerator found"
    elif not found.usable:
        why = f"{_many(found.count, found.kind)} found, but JAX's plugin is not installed"
    else:
        variable = _VISIBLE.get(found.kind)
        chosen = environ.get(variable) if variable else None
        visible = _visible(chosen, found.count)
        if visible:
            return _on_accelerators(replicas, found, visible)
        why = f"{variable}={chosen} hides {_many(found.count, found.kind)}"
    if platforms and "cpu" not in platforms:
        if replicas is None:  # JAX may know an accelerator that we do not
            return RunPlan(f"JAX_PLATFORMS={','.join(platforms)} ({why})", {"KERAS_BACKEND": "jax"})
        raise SettingError(
            message(
                "JAX must be allowed to use what --replicas counts.",
                f"JAX_PLATFORMS={','.join(platforms)} ({why})",
                f"JAX_PLATFORMS=cpu phalanx run --replicas {replicas} train.py",
            )
        )
    return _on_cpu(replicas, environ, why, cpus)


def _on_cpu(replicas: int | None, environ: Mapping[str, str], why: str, cpus: int) -> RunPlan:
    changes = {"KERAS_BACKEND": "jax"}
    name, asked = _asked_for(environ)
    count = replicas or asked
    if count is None:
        return RunPlan(f"1 CPU replica ({why}; --replicas N makes N)", changes)
    if not environ.get("NPROC"):
        # Threads that wait for each other: twice the replicas never stopped, one more than them did.
        changes["NPROC"] = str(max(cpus, 2 * count))
    if replicas is not None:
        changes["JAX_NUM_CPU_DEVICES"] = str(replicas)
        if not environ.get("JAX_PLATFORMS"):
            changes["JAX_PLATFORMS"] = "cpu"
    note = "" if name is None or asked == replicas else f"; --replicas wins over {name}={asked}"
    if replicas is None:
        note = f"; {name}={asked}"
    warning = None
    if count > _MANY:
        warning = message(
            "CPU replicas share the cores of this machine; they test code and do not make it faster.",
            f"{count} replicas on {_many(cpus, 'core')}",
            "phalanx run --replicas 8 train.py",
        )
    return RunPlan(f"{_many(count, 'CPU replica')} ({why}{note})", changes, warning)


def _on_accelerators(replicas: int | None, found: accelerators.Accelerators, visible: list[str]) -> RunPlan:
    kind = str(found.kind)
    replicas = len(visible) if replicas is None else replicas
    if replicas > len(visible):
        raise DeviceError(
            message(
                "Each replica has an accelerator of its own.",
                f"--replicas {replicas}, but {_many(len(visible), f'visible {kind}')}",
                f"phalanx run --replicas {len(visible)} train.py"
                f"   # or JAX_PLATFORMS=cpu phalanx run --replicas {replicas} train.py",
            )
        )
    changes = {"KERAS_BACKEND": "jax"}
    if replicas == len(visible):
        return RunPlan(_many(replicas, kind), changes)
    if kind in _VISIBLE:
        changes[_VISIBLE[kind]] = ",".join(visible[:replicas])
    else:
        chips, half = divmod(replicas, found.devices_per_chip)
        if half or chips not in _TPU_BOUNDS:
            sizes = ", ".join(str(size * found.devices_per_chip) for size in _TPU_BOUNDS)
            raise UnsupportedError(
                message(
                    f"A part of this TPU host has {sizes} devices.",
                    f"--replicas {replicas} of {len(visible)}",
                    'strategy = phalanx.MirroredStrategy(devices=["tpu:0", "tpu:1", "tpu:2"])'
                    "   # in the script",
                )
            )
        changes["TPU_VISIBLE_CHIPS"] = ",".join(str(chip) for chip in range(chips))
        changes["TPU_CHIPS_PER_PROCESS_BOUNDS"] = _TPU_BOUNDS[chips]
        changes["TPU_PROCESS_BOUNDS"] = "1,1,1"
    return RunPlan(f"{replicas} of {_many(len(visible), kind)}", changes)


def _visible(chosen: str | None, count: int) -> list[str]:
    """The GPUs that a user's list leaves visible; like CUDA, it ends at the first that is not there."""
    if chosen is None:
        return [str(index) for index in range(count)]
    visible = []
    for each in (name.strip() for name in chosen.split(",")):
        there = int(each) < count if each.isdecimal() else each.startswith(("GPU-", "MIG-"))
        if not there:
            break
        visible.append(each)
    return visible


def _asked_for(environ: Mapping[str, str]) -> tuple[str | None, int | None]:
    """How the environment asks for a number of CPU devices, if it does; of the two, JAX's own wins."""
    own = environ.get("JAX_NUM_CPU_DEVICES", "")
    if re.fullmatch(r"[0-9]{1,9}", own):
        return "JAX_NUM_CPU_DEVICES", int(own)
    forced = re.findall(
        r"--xla_force_host_platform_device_count=([0-9]{1,9})\b", environ.get("XLA_FLAGS", "")
    )
    return ("--xla_force_host_platform_device_count", int(forced[-1])) if forced else (None, None)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count != 1]}"


def _whole_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
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
    if not rest:
        received = "no script"
    elif files.kind(rest[0]) == "nothing":
        received = f"{rest[0]!r}, which is not there"
    elif files.kind(rest[0]) == "folder" and files.kind(f"{rest[0]}/__main__.py") == "nothing":
        received = f"{rest[0]!r}, which is a folder without a __main__.py"
    else:
        return ["--", *rest]  # behind it, Python takes no name for an option
    raise SettingError(message("`phalanx run` runs a script.", received, "phalanx run --replicas 2 train.py"))
