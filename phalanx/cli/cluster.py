"""`phalanx cluster`: what this machine's environment says of the cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from phalanx.cluster import explain

_TEACH = """\
actions:
  explain    what each environment says, which one counts, what conflicts; asks nobody, starts nothing

examples:
  phalanx cluster explain                          here and now
  srun phalanx cluster explain                     in each task of a Slurm job
  TF_CONFIG='{...}' phalanx cluster explain        before you start for real
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


_ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {"explain": _explain}
