"""`phalanx cluster`: what this machine's environment says of the cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from phalanx.cli import run
from phalanx.cluster import explain, resolve
from phalanx.cluster.inspection import inspect
from phalanx.errors import SettingError, message
from phalanx.host import files
from phalanx.text import quote

_TEACH = """\
actions:
  explain    what each environment says, which one counts, what conflicts; asks nobody, starts nothing
  check      run on every node at the same time: do the workers reach each other, and run the same?

examples:
  phalanx cluster explain                          here and now
  srun phalanx cluster explain                     in each task of a Slurm job
  TF_CONFIG='{...}' phalanx cluster explain        before you start for real
  srun phalanx cluster check --shared /data train.py
"""

_EXPLAIN = """\
in order of precedence, and what is read:
  TF_CONFIG            its JSON: cluster and task
  KERAS_DISTRIBUTION   KERAS_DISTRIBUTION_JOB_ADDRESSES, _NUM_PROCESSES, _PROCESS_ID
  torchrun             MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
  Slurm                SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_TASKS_PER_NODE, SLURM_PROCID, SLURM_JOB_ID
  MPI                  OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE; MASTER_ADDR
  Kubernetes           JOB_COMPLETION_INDEX, HOSTNAME, NNODES, POD_SUBDOMAIN; of a JobSet its labels, as
                       JOBSET_NAME, REPLICATED_JOB_NAME, JOB_INDEX, REPLICATED_JOB_REPLICAS
  TPU                  TPU_WORKER_HOSTNAMES, TPU_WORKER_ID; MEGASCALE_*

The first that says something counts. If it is wrong, nothing runs; if it says a part only, a later
one that says all counts instead. Where none speaks there is one worker.

verdicts:
  counts       this is the cluster
  agrees       the same number of workers, the same index
  conflicts    other numbers, which follow
  incomplete   some variables without the others
  wrong        a value that cannot be right

Exit code 2 where there is no cluster to run on.
"""


_CHECK = """\
run it where the training will run, once for each worker, as the training would be started:
  srun phalanx cluster check --shared /data train.py
  kubectl: as the command of the pods of `phalanx manifest kubernetes`
  by hand, in one terminal of each machine: TF_CONFIG='{...}' phalanx cluster check

what is checked:
  presence     every worker connects within the timeout; each has an index of its own
  names        each name has an address on every machine, and none is loopback (127.0.1.1 in /etc/hosts)
  ports        each worker listens at its own address only; every other one gets there, in both directions
               (more than 8 workers: neighbours, and everybody with the chief)
  versions     of Python, Phalanx, JAX, Keras and NumPy; the text of the script, if you name it
  clocks       within a second
  --shared     what one worker writes there the others see, and the other way round
  speed        a table, on the chief: milliseconds there and back, million bytes a second

Exit code 0 where nothing is wrong, 1 where something is: on every worker alike. No JAX is loaded.
"""
_TIMEOUT = "30"


def describe(commands: Any, name: str) -> None:
    """Add this command and its actions to the parser.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
        name: The word on the command line.
    """
    parser = commands.add_parser(
        name,
        help="what the environment says of the cluster",
        description="Read the cluster from the environment, without starting anything.",
        epilog=_TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="phalanx cluster action",
        allow_abbrev=False,
    )
    parser.set_defaults(help_of_cluster=parser.format_help)
    actions = parser.add_subparsers(dest="action", metavar="action")
    actions.add_parser(
        "explain",
        help="what each environment says, which one counts, what conflicts",
        description="Print what each environment says of the cluster, which counts, and what conflicts.",
        epilog=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    check = actions.add_parser(
        "check",
        help="whether the workers reach each other and run the same; run it on every node",
        description="Meet the other workers and check what training needs: names, ports, versions, clocks.",
        epilog=_CHECK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    check.add_argument(
        "--timeout", metavar="S", default=_TIMEOUT, help="seconds to wait for all (default: 30)"
    )
    check.add_argument("--shared", metavar="DIR", help="a directory that should be the same on all")
    check.add_argument("script", nargs="?", help="the script that should be the same on all")


def act(options: argparse.Namespace) -> None:
    """Do the action, or print the help where there is none.

    Args:
        options: The parsed command line.
    """
    if options.action is None:
        print(options.help_of_cluster())
        return
    _ACTIONS[options.action](options)


def _explain(options: argparse.Namespace) -> None:
    resolution = explain()
    print(resolution)
    if resolution.error is not None:
        raise resolution.error
    print(f"\n{resolution.spec}")


def _check(options: argparse.Namespace) -> None:
    seconds = run.whole(options.timeout, "--timeout", "phalanx cluster check --timeout 30", most=86_400)
    for what, path, kind in (("--shared", options.shared, "folder"), ("The script", options.script, "file")):
        if path is not None and files.kind(path) != kind:
            raise SettingError(
                message(
                    f"{what} is a {kind} on every machine.",
                    f"{quote(path)} is {'not there' if files.kind(path) == 'nothing' else 'none'}",
                    "phalanx cluster check --shared /data train.py",
                )
            )
    report = inspect(resolve(), float(seconds or 30), options.shared, options.script)
    print(report, flush=True)
    if report.findings:
        raise SystemExit(1)


_ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {"check": _check, "explain": _explain}
