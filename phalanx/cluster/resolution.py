"""Resolution: what each environment says of the cluster, which of them counts, and what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from phalanx.cluster import keras_distribution, kubernetes, mpi, slurm, tf_config, torchrun, tpu
from phalanx.cluster.fields import IncompleteError, present, wrong
from phalanx.cluster.spec import ClusterSpec
from phalanx.errors import ClusterError, message, warn
from phalanx.host import env
from phalanx.text import quote, table

Parser = Callable[[Mapping[str, str]], ClusterSpec | None]

# The first that says something counts: what a person wrote for this run stands before what a launcher sets,
# and the launcher nearer to the process before the one around it.
PARSERS: tuple[tuple[str, Parser], ...] = (
    (tf_config.SOURCE, tf_config.parse),
    (keras_distribution.SOURCE, keras_distribution.parse),
    (torchrun.SOURCE, torchrun.parse),
    (slurm.SOURCE, slurm.parse),
    (mpi.SOURCE, mpi.parse),
    (kubernetes.SOURCE, kubernetes.parse),
    (tpu.SOURCE, tpu.parse),
)
ALONE = "one worker"
_JAX = ("JAX_COORDINATOR_ADDRESS",)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one environment says.

    Args:
        source: The environment.
        says: Its cluster in a few words, or what is wrong with it.
        verdict: `"counts"`, `"agrees"`, `"conflicts"`, `"incomplete"`, `"wrong"` or `"-"`.
        against: Where it conflicts with the one that counts, on which numbers.
        spec: Its cluster, if it describes one.
    """

    source: str
    says: str = "nothing"
    verdict: str = "-"
    against: str = ""
    spec: ClusterSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The findings in all environments, and the cluster that follows; `print` it to read it.

    Args:
        findings: One for each environment, in order of precedence.
        spec: The cluster, or None where there is an error.
        error: What is wrong with the environment that would count.

    Example:
        >>> print(explain({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
        ...                "JOB_COMPLETION_INDEX": "0", "NNODES": "1"}))
        environment         says                                verdict
        TF_CONFIG           nothing                             -
        KERAS_DISTRIBUTION  nothing                             -
        torchrun            worker 1 of 2, coordinator a:29500  counts
        Slurm               nothing                             -
        MPI                 nothing                             -
        Kubernetes          worker 0 of 1, no coordinator       conflicts: 1 worker, not 2; index 0, not 1
        TPU                 nothing                             -
    """

    findings: tuple[Finding, ...]
    spec: ClusterSpec | None = None
    error: ClusterError | None = None

    @property
    def winner(self) -> str:
        """The environment that counts, or `"one worker"` where none says anything."""
        return next((each.source for each in self.findings if each.verdict == "counts"), ALONE)

    def __str__(self) -> str:
        rows = [
            (each.source, each.says, each.verdict + (f": {each.against}" if each.against else ""))
            for each in self.findings
        ]
        return table(("environment", "says", "verdict"), rows)


def resolve(environ: Mapping[str, str] | None = None) -> ClusterSpec:
    """The cluster that this process is a worker of, as the environment describes it.

    In order of precedence: `TF_CONFIG`, `KERAS_DISTRIBUTION_*`, torchrun's variables, Slurm, MPI, Kubernetes,
    Cloud TPU; where none of them says anything, one worker. Where others conflict with the one that counts,
    the `notes` say so. Nothing is connected to and nobody is asked.

    Args:
        environ: The environment; the process's own by default.

    Returns:
        The cluster.

    Raises:
        ClusterError: The first environment that speaks is wrong, or one says a part and none says all: a run
            that was meant for several workers is never quietly one of a single worker.

    Example:
        >>> resolve({}).num_workers
        1
        >>> resolve({"PMI_RANK": "2", "PMI_SIZE": "4", "MASTER_ADDR": "node1"}).coordinator
        'node1:61440'
    """
    resolution = explain(environ)
    if resolution.error is not None:
        raise resolution.error
    assert resolution.spec is not None
    others = [each for each in resolution.findings if each.verdict in ("conflicts", "incomplete", "wrong")]
    if resolution.spec.num_workers == 1 and others:
        warn(
            message(
                "This run has one worker, though another part of the environment speaks of a cluster.",
                f"{resolution.winner} counts; {others[0].source} ({others[0].verdict}): {others[0].says}",
                "phalanx cluster explain",
            )
        )
    return resolution.spec


def explain(environ: Mapping[str, str] | None = None) -> Resolution:
    """Everything that the environment says of a cluster, without raising.

    Args:
        environ: The environment; the process's own by default.

    Returns:
        The findings, and the cluster or the error that follows.

    Example:
        >>> explain({"WORLD_SIZE": "4"}).findings[2].verdict
        'incomplete'
    """
    environ = env.snapshot() if environ is None else environ
    findings, errors = [], {}
    for source, parse in PARSERS:
        try:
            spec = parse(environ)
        except ClusterError as error:
            errors[source] = error
            verdict = "incomplete" if isinstance(error, IncompleteError) else "wrong"
            findings.append(Finding(source=source, says=_received(error), verdict=verdict))
        else:
            says = "nothing" if spec is None else _says(spec)
            findings.append(Finding(source=source, says=says, spec=spec))
    winner = next((each for each in findings if each.spec is not None or each.verdict == "wrong"), None)
    if winner is None and not errors:
        return _alone(environ, findings)
    if winner is None or winner.spec is None:  # the nearest to an answer is the first that spoke
        source = winner.source if winner else next(iter(errors))
        return Resolution(findings=tuple(findings), error=errors[source])
    judged = tuple(_judge(each, winner, winner.spec) for each in findings)
    notes = tuple(_note(each) for each in judged if each.verdict not in ("-", "counts", "agrees"))
    return Resolution(findings=judged, spec=replace(winner.spec, notes=(*winner.spec.notes, *notes)))


def _alone(environ: Mapping[str, str], findings: list[Finding]) -> Resolution:
    """One worker; but not where somebody meant several and wrote it for jax.distributed alone."""
    if present(environ, _JAX):
        error = wrong(
            "Phalanx reads the variables of keras.distribution, not those of jax.distributed.",
            f"{_JAX[0]}={quote(environ[_JAX[0]])}, and no environment that says how many workers there are",
            "export KERAS_DISTRIBUTION_JOB_ADDRESSES=host1:2222 KERAS_DISTRIBUTION_NUM_PROCESSES=2"
            " KERAS_DISTRIBUTION_PROCESS_ID=0",
        )
        return Resolution(findings=tuple(findings), error=error)
    return Resolution(
        findings=tuple(findings), spec=ClusterSpec(workers=(("localhost", None),), source="no environment")
    )


def _judge(finding: Finding, winner: Finding, chosen: ClusterSpec) -> Finding:
    if finding is winner:
        return replace(finding, verdict="counts")
    if finding.spec is None:
        return finding
    against = []
    if finding.spec.num_workers != chosen.num_workers:
        workers = finding.spec.num_workers
        against.append(f"{workers} worker{'s'[: workers != 1]}, not {chosen.num_workers}")
    if finding.spec.index != chosen.index:
        against.append(f"index {finding.spec.index}, not {chosen.index}")
    return replace(finding, verdict="conflicts" if against else "agrees", against="; ".join(against))


def _note(finding: Finding) -> str:
    return f"{finding.source} {finding.verdict}: {finding.against or finding.says}"


def _says(spec: ClusterSpec) -> str:
    meeting = f"coordinator {spec.coordinator}" if spec.coordinator else "no coordinator"
    return f"worker {spec.index} of {spec.num_workers}, {meeting}"


def _received(error: ClusterError) -> str:
    """The middle part of a three-part text."""
    return str(error).splitlines()[1].removeprefix("  received: ")
