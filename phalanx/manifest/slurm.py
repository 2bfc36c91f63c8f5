"""Slurm: a batch script whose step is the workers, one task on each node."""

from __future__ import annotations

import shlex

from phalanx.cluster.fields import COORDINATOR_PORT
from phalanx.errors import SettingError, message
from phalanx.manifest.job import Job
from phalanx.text import many

_LOOP = """\
code=0
for ((run = 0; run <= {restarts}; run++)); do
  {srun} && exit 0
  code=$?
  echo "run $run of {restarts} ended with code $code" >&2
  sleep {pause}
done
exit "$code"
"""
_PAUSE = 5  # seconds between two runs, for ports and file systems to settle


def sbatch(job: Job) -> str:
    """The batch script.

    `srun` tells each task its place, which `phalanx.cluster.slurm.parse` reads. The first task that fails
    ends the step; with `max_restarts` the script starts the step again in the same allocation.

    Args:
        job: The run.

    Returns:
        A bash script.

    Raises:
        SettingError: An image, which plain Slurm does not run.

    References:
        https://slurm.schedmd.com/sbatch.html
    """
    if job.image is not None:
        raise SettingError(
            message(
                "A Slurm job runs on the nodes themselves.",
                f"--image {job.image}",
                f"phalanx manifest slurm --workers {job.workers} train.py",
            )
        )
    options = {"job-name": job.name, "nodes": job.workers, "ntasks-per-node": 1}
    if job.gpus:
        options["gpus-per-node"] = job.gpus
    if job.time is not None:
        options["time"] = job.time
    options["output"] = "%x-%j.out"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in options.items()),
        f"# {many(job.workers, 'worker')} of one script: sbatch train.sbatch",
        "# phalanx and the script are at the same place on every node.",
        "set -u",
        "export PYTHONUNBUFFERED=1",
    ]
    if job.port is not None:
        lines.append(f"export {COORDINATOR_PORT}={job.port}")
    srun = f"srun --kill-on-bad-exit=1 --label {shlex.join(job.command)}"
    if not job.max_restarts:
        return "\n".join([*lines, srun, ""])
    return "\n".join([*lines, _LOOP.format(restarts=job.max_restarts, srun=srun, pause=_PAUSE)])
