"""`phalanx manifest`: a script as a job of Kubernetes or Slurm, as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.cli import run
from phalanx.errors import SettingError, message
from phalanx.manifest.job import Job
from phalanx.manifest.kubernetes import jobset
from phalanx.manifest.slurm import sbatch

_WRITERS: dict[str, Callable[[Job], str]] = {"kubernetes": jobset, "slurm": sbatch}
_MOST, _PORTS = 1024, 65_535
_TEACH = """\
schedulers:
  kubernetes   a JobSet: one indexed Job whose pods are the workers
  slurm        a batch script for sbatch: one task on each node

Printed, not submitted: read it, add what your cluster wants (volumes, a partition, an account), submit it.
Each worker runs `phalanx run script.py`, and the script's MultiWorkerMirroredStrategy reads its place from
what the scheduler sets; `phalanx cluster explain` shows it. Arguments reach the script as they are: no shell
and no kubelet replaces anything in them.

examples:
  phalanx manifest slurm --workers 4 --gpus 8 --time 12:00:00 train.py --epochs 20 > train.sbatch
  phalanx manifest kubernetes --workers 2 --gpus 1 --image registry.example/train:1 train.py > train.yaml
  phalanx manifest slurm --workers 2 --max-restarts 3 -m package.train
"""
_OPTIONS = {
    "--workers": ("N", "processes, one on each machine (default: 2)"),
    "--gpus": ("G", "GPUs of each worker (default: none asked for)"),
    "--replicas": ("M", "model copies of each worker (default: its GPUs, or all that it finds)"),
    "--name": ("name", "what the scheduler calls the job (default: train)"),
    "--image": ("image", "the container image, with phalanx and the script in it (kubernetes)"),
    "--time": ("T", "longest run, [days-]hours:minutes:seconds (default: the scheduler's)"),
    "--max-restarts": ("K", "failures after which all workers start again (default: 0)"),
    "--port": ("P", "port where workers meet (default: one that follows from the job)"),
}


def describe(commands: Any, name: str) -> None:
    """Add this command to the parser.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
        name: The word on the command line.
    """
    parser = commands.add_parser(
        name,
        help="print a JobSet or an sbatch file for a script",
        description="Print the file that runs a script on several machines under a scheduler.",
        epilog=_TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"phalanx manifest ({' | '.join(_WRITERS)}) [options] (script.py | -m module) [arguments ...]",
        allow_abbrev=False,
    )
    parser.add_argument("scheduler", nargs="?", choices=tuple(_WRITERS), help="whose file")
    for option, (metavar, text) in _OPTIONS.items():
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("-m", dest="module", metavar="module", help="run a module, as python -m does")
    parser.set_defaults(rest=[], help_of_manifest=parser.format_help)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut a command line into what is ours and what belongs to the script.

    Args:
        arguments: What stands behind `phalanx manifest`.

    Returns:
        The scheduler and our options; the script with its arguments.

    Example:
        >>> split(["slurm", "--workers", "2", "train.py", "--workers", "7"])
        (['slurm', '--workers', '2'], ['train.py', '--workers', '7'])
    """
    scheduler = [] if not arguments or arguments[0].startswith("-") else [arguments[0]]
    ours, rest = run.split(arguments[len(scheduler) :], tuple(_OPTIONS))
    return [*scheduler, *ours], rest


def act(options: argparse.Namespace) -> None:
    """Print the file, or the help where no scheduler is named.

    Args:
        options: The parsed command line, with `rest` untouched.
    """
    if options.scheduler is None:
        print(options.help_of_manifest())
        return
    if options.module is None and not options.rest:
        raise SettingError(
            message(
                "A manifest runs a script.",
                "no script",
                f"phalanx manifest {options.scheduler} --workers 2 train.py",
            )
        )
    dashed = options.module is None and options.rest[0].startswith("-")
    front = ["-m", options.module] if options.module is not None else ["--"] if dashed else []
    given = {"name": options.name, "workers": _number(options, "workers", most=_MOST) or 2}
    job = Job(
        arguments=(*front, *options.rest),
        replicas=_number(options, "replicas"),
        gpus=_number(options, "gpus", least=0) or 0,
        image=options.image,
        time=options.time,
        max_restarts=_number(options, "max-restarts", least=0) or 0,
        port=_number(options, "port", most=_PORTS),
        **{name: value for name, value in given.items() if value is not None},
    )
    print(_WRITERS[options.scheduler](job), end="")


def _number(options: argparse.Namespace, name: str, *, least: int = 1, most: int = 1_000_000) -> int | None:
    text = getattr(options, name.replace("-", "_"))
    paste = f"phalanx manifest {options.scheduler} --{name} {max(1, least)} train.py"
    return run.whole(text, f"--{name}", paste, least=least, most=most)
