"""Slurm: the tasks of a step that srun started, on the nodes of its list."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster import hostlist, mpi
from phalanx.cluster.fields import (
    COORDINATOR_PORT,
    MOST_WORKERS,
    first,
    incomplete,
    number,
    port_of,
    present,
    wrong,
)
from phalanx.cluster.spec import ClusterSpec
from phalanx.text import quote

SOURCE = "Slurm"
_JOB = ("SLURM_JOB_ID", "SLURM_JOBID")
_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_COUNT = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_NUM_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_SRUN = "srun python train.py"
_NO_STEP = 0xFFFFFFF0  # Slurm's numbers for batch scripts and interactive shells
_FIRST_PORT, _SLOTS, _WIDTH = 61440, 240, 16  # above what Linux gives out by itself; one slot for each step


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read the variables that srun sets for each task of a step.

    Tasks of a node have consecutive ports. The first is `JAX_COORDINATOR_PORT`, or follows from the job and
    step ids alone, so that it is the same on all tasks. Without tasks per node, each node has equally many.

    Where mpirun counts otherwise than Slurm, it stands between: Slurm's tasks are then mpirun's daemons, one
    on each node, and the ranks are MPI's to say.

    A process inside an allocation that srun did not start is one worker where the allocation is one task on
    one node, and an error otherwise.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where there is no Slurm job.

    Raises:
        ClusterError: Started without srun, or numbers that contradict each other.

    Example:
        >>> spec = parse({"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[01,09]", "SLURM_NTASKS": "4",
        ...               "SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
        >>> spec.index, spec.addresses
        (3, ('node01:61552', 'node01:61553', 'node09:61552', 'node09:61553'))

    References:
        https://slurm.schedmd.com/srun.html (output environment variables)
    """
    if not present(environ, (*_JOB, *_NODES, *_COUNT, "SLURM_PROCID")):
        return None
    nodes_name, nodes_text = first(environ, _NODES)
    count_name, count_text = first(environ, _COUNT)
    if not environ.get("SLURM_STEP_NODELIST") or _step(environ) >= _NO_STEP:
        return _outside(environ)
    if count_name is None or not environ.get("SLURM_PROCID"):
        raise incomplete(
            "srun gives each task its number and the number of tasks.",
            f"{nodes_name} without {'SLURM_PROCID' if count_name else 'SLURM_NTASKS'}",
            _SRUN,
        )
    count = number(count_name, count_text, 1, MOST_WORKERS, _SRUN)
    index = number("SLURM_PROCID", environ["SLURM_PROCID"], 0, count - 1, _SRUN)
    _check_nearest(environ, index, count)
    hosts = hostlist.expand(str(nodes_name), nodes_text)
    nodes = _node_of_each_task(environ, len(hosts), count, count_name)
    first_port, notes = _first_port(environ)
    ports, filled = [], [0] * len(hosts)
    for node in nodes:
        ports.append(first_port + filled[node])
        filled[node] += 1
    _check_own_place(environ, index, nodes)
    if max(filled) > _WIDTH:
        notes.append(f"{max(filled)} tasks on a node: their ports reach into those of the next job")
    if max(ports) > 65535:
        raise wrong(
            "Tasks of a node have ports of their own, up to 65535.",
            f"{max(filled)} tasks on a node, from port {first_port}",
            "srun --ntasks-per-node=8 python train.py",
        )
    workers = tuple((hosts[node], port) for node, port in zip(nodes, ports, strict=True))
    return ClusterSpec(workers=workers, index=index, source=SOURCE, notes=tuple(notes))


def _outside(environ: Mapping[str, str]) -> ClusterSpec | None:
    """A process of a batch script or a shell in an allocation: not a task of a step."""
    count_name, count_text = first(environ, _COUNT[1:])  # an interactive step counts itself only
    nodes_name, nodes_text = first(environ, _NUM_NODES)
    tasks = number(count_name, count_text, 1, MOST_WORKERS, _SRUN) if count_name else 1
    nodes = number(nodes_name, nodes_text, 1, MOST_WORKERS, _SRUN) if nodes_name else 1
    listed_name, listed = first(environ, _NODES[1:])
    if listed_name:
        nodes = max(nodes, len(hostlist.expand(listed_name, listed)))
    if tasks > 1 or nodes > 1:
        raise incomplete(
            "Workers in a Slurm job are tasks that srun starts.",
            f"{tasks} tasks on {nodes} nodes, and this process is no task of a step: started without srun",
            _SRUN,
        )
    _check_nearest(environ, 0, 1)
    return ClusterSpec(
        workers=(("localhost", None),),
        source=SOURCE,
        notes=("an allocation of one task, started without srun",),
    )


def _check_nearest(environ: Mapping[str, str], index: int, count: int) -> None:
    """MPI under srun repeats Slurm's numbers; other numbers are those of an mpirun inside of the task."""
    for rank_name, size_name, _ in mpi.LAUNCHERS:
        rank, size = environ.get(rank_name), environ.get(size_name)
        if rank and size and (rank.strip(), size.strip()) != (str(index), str(count)):
            raise incomplete(
                "Where mpirun starts the workers inside of a Slurm job, Slurm's tasks are mpirun's daemons.",
                f"task {index} of {count}, and {rank_name}={quote(rank)} of {size_name}={quote(size)}",
                mpi.PASTE,
            )


def _node_of_each_task(environ: Mapping[str, str], nodes: int, count: int, count_name: str) -> list[int]:
    name, text = first(environ, _PER_NODE)
    if name is not None:
        tasks = hostlist.tasks_per_node(name, text, nodes)
    elif count % nodes == 0:
        tasks = (count // nodes,) * nodes
    else:
        raise incomplete(
            "Where nodes have different numbers of tasks, Slurm says so in SLURM_TASKS_PER_NODE.",
            f"{count} tasks on {nodes} nodes, and no SLURM_TASKS_PER_NODE",
            _SRUN,
        )
    if sum(tasks) != count:
        raise wrong(
            "The tasks of all nodes are all tasks.",
            f"{name}={quote(text)} is {sum(tasks)} tasks, and {count_name}={count}",
            _SRUN,
        )
    way = environ.get("SLURM_DISTRIBUTION", "block").partition(":")[0].partition(",")[0]
    if way == "cyclic":
        rounds = [[node for node in range(nodes) if tasks[node] > turn] for turn in range(max(tasks))]
        return [node for each in rounds for node in each]
    if way not in ("block", "") and max(tasks) > 1:
        raise wrong(
            "Phalanx knows the distributions block and cyclic of tasks over nodes.",
            f"SLURM_DISTRIBUTION={quote(environ['SLURM_DISTRIBUTION'])}",
            "srun --distribution=block python train.py",
        )
    return [node for node in range(nodes) for _ in range(tasks[node])]


def _check_own_place(environ: Mapping[str, str], index: int, nodes: list[int]) -> None:
    """Slurm also says where this task is; if that is elsewhere, the order above is not Slurm's."""
    place = {"SLURM_NODEID": nodes[index], "SLURM_LOCALID": nodes[:index].count(nodes[index])}
    for name, expected in place.items():
        text = environ.get(name)
        if text and number(name, text, 0, MOST_WORKERS, _SRUN) != expected:
            raise wrong(
                "Tasks are counted along the list of nodes.",
                f"SLURM_PROCID={index} is {name}={expected} by that count, and Slurm says {text.strip()}",
                "srun --distribution=block python train.py",
            )


def _first_port(environ: Mapping[str, str]) -> tuple[int, list[str]]:
    if environ.get(COORDINATOR_PORT):
        return port_of(environ, _FIRST_PORT), []
    name, text = first(environ, _JOB)
    notes = [] if name else ["no SLURM_JOB_ID: the port is the same for all such jobs"]
    job = number(name, text, 0, 2**32, _SRUN) if name else 0
    return _FIRST_PORT + (job + 61 * _step(environ)) % _SLOTS * _WIDTH, notes


def _step(environ: Mapping[str, str]) -> int:
    name, text = first(environ, ("SLURM_STEP_ID", "SLURM_STEPID"))
    return number(name, text, 0, 2**32, _SRUN) if name else 0
