"""The supervisor: run all workers, and again if the policy says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.errors import PhalanxError, SettingError, message
from phalanx.host import family, ports, watch
from phalanx.launch.between import Between, between
from phalanx.launch.crew import Crew, Ended, first_failure
from phalanx.launch.lines import port_taken
from phalanx.launch.plan import WorkersPlan, with_address
from phalanx.launch.turns import Turns
from phalanx.restart import Exit, Policy, decide
from phalanx.text import many


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How workers are started and ended.

    Args:
        grace: Seconds between SIGTERM and SIGKILL.
        port: The first worker's port, or None for free ones.
        policy: Whether they start again.

    Raises:
        SettingError: A grace time that is no number of seconds.
    """

    grace: float = 5.0
    port: int | None = None
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not 0 <= self.grace <= 3600:
            raise SettingError(
                message(
                    "The grace time is between 0 seconds and an hour.",
                    f"grace={self.grace}",
                    "Settings(grace=5)",
                )
            )


def supervise(
    arguments: Sequence[str], plan: WorkersPlan, environ: Mapping[str, str], settings: Settings
) -> int:
    """Run workers until they are done.

    Args:
        arguments: What stands behind `python` in each of them.
        plan: What each of them gets.
        environ: The user's environment.
        settings: How they are started and ended.

    Returns:
        The exit code: 0 where all workers left with 0; that of the first worker that failed, 128 + n where
        signal n ended it; 130, 143 or 129 where Ctrl-C, SIGTERM or a closed terminal ended the launcher, 141
        where its output can no more be written.

    Raises:
        SettingError: A port that is taken, or workers that the system does not start.
    """
    with (
        watch.Watch() as eyes,
        between(environ, settings.policy.max_restarts) as kept,  # to the end: the family ends before it goes
        family.Family() as processes,
    ):
        turns = Turns(eyes)
        if kept.note:
            turns.console.say(kept.note)

        def run_once(history: Sequence[Exit]) -> tuple[Exit, str]:
            return _run_once(arguments, plan, environ, settings, history, turns, processes, kept)

        return repeat(run_once, turns, settings.policy, len(plan.changes))


def repeat(
    run_once: Callable[[Sequence[Exit]], tuple[Exit, str]], turns: Turns, policy: Policy, workers: int
) -> int:
    """Run all workers, and again if the policy says so, wherever they are.

    Args:
        run_once: Given the ends of the earlier runs, runs once; returns the end, and the last lines of the
            worker that brought it about.
        turns: The launcher's waits.
        policy: Whether they start again.
        workers: How many there are.

    Returns:
        The exit code.
    """
    history: list[Exit] = []
    while True:
        try:
            exit, last_lines = run_once(history)
        except PhalanxError:
            turns.write_rest()
            raise
        decision = decide(history, exit, watch.now(), policy)
        if decision.action == "restart":
            after = f" in {decision.delay:.1f} s" if decision.delay else ""
            turns.console.say(decision.reason + after)
            turns.pause(decision.delay)
        elif exit.code and exit.told is None:
            turns.console.say(_last_words(decision.reason, last_lines, workers))
        if decision.action == "stop" or turns.told is not None:
            code = exit.code if turns.told is None else family.exit_code(turns.told)
            turns.write_rest()
            return code
        history.append(exit)


def _run_once(
    arguments: Sequence[str],
    plan: WorkersPlan,
    environ: Mapping[str, str],
    settings: Settings,
    history: Sequence[Exit],
    turns: Turns,
    processes: family.Family,
    kept: Between,
) -> tuple[Exit, str]:
    """Start all, wait for the first failure or for all to be done, end what is left.

    Returns:
        The end, and the last lines of the worker that brought it about.
    """
    crew, saved = Crew(processes, turns), kept.saved()
    try:
        with ports.claim(len(plan.changes), settings.port) as claimed:
            started = watch.now()
            for index, changes in enumerate(plan.changes):
                crew.start(
                    index, arguments, with_address(index, claimed, {**changes, **kept.changes}, environ)
                )
            culprit = None
            exit = Exit(code=0, started=started, ended=started, running=crew.running)
            while exit.told is None and decide(history, exit, watch.now(), settings.policy).action == "wait":
                ended = crew.turn(None)
                culprit = first_failure(ended)
                exit = ending(culprit or next(iter(ended), None), started, crew.running, turns.told)
            if turns.told is not None and crew.running:
                turns.console.say(farewell(turns.told, crew.running, settings.grace))
            crew.end(settings.grace)
            crew.hear_rest()
            processes.forget()
    finally:
        crew.close()
    text = culprit.worker.tail.text() if culprit is not None else ""
    taken = port_taken(text, claimed) if settings.port is None else None
    return replace(exit, told=turns.told, port_taken=taken, saved=kept.saved() - saved), text


def ending(ended: Ended | None, started: float, running: int, told: str | None) -> Exit:
    """The end of a worker as the policy sees it; where none has ended, one that waits for all."""
    if ended is None:
        return Exit(code=0, started=started, ended=started, running=running, told=told)
    return Exit(
        code=family.exit_code(ended.status),
        who=f"worker {ended.worker.index}",
        how=family.describe(ended.status),
        started=started,
        ended=watch.now(),
        running=running,
        told=told,
    )


def farewell(told: str, running: int, grace: float) -> str:
    """What is said to a launcher that is told to end."""
    why = "the output can no more be written" if told == "SIGPIPE" else told
    return f"{why}: {many(running, 'worker')} asked to end, killed after {grace:g} s"


def _last_words(reason: str, lines: str, workers: int) -> str:
    if workers == 1:  # they stand right above
        return reason
    if not lines:
        return f"{reason}; it wrote nothing to standard error"
    return f"{reason}; the last lines of its standard error:\n{lines}"
