"""The check of a cluster: run on every node, it asks each worker in turn and gives all the same report.

It meets as training does, then the chief leads: one question, one worker, one answer. JAX is not loaded.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.cluster import check
from phalanx.cluster.check import Line, Report
from phalanx.cluster.rendezvous import meet
from phalanx.cluster.spec import ClusterSpec, is_host, is_loopback
from phalanx.errors import ClusterError, SettingError, message
from phalanx.host import files, machine, probe, wire
from phalanx.text import quote

_ANSWER = 30.0  # seconds for one answer
_WAY = 15.0  # seconds for one measurement
_TURN = 600.0  # seconds in which a worker waits for the chief's next question
_LATE = 5.0  # seconds by which a network file system may be late
_MOST = 20  # findings that are told to all
_LONGEST = 1000  # characters of one of them
_ROOM = 48 * 1024  # bytes of all of them: a message holds 64 KiB


@dataclass(frozen=True)
class _Own:
    """What a worker knows by itself."""

    index: int
    host: str
    port: int
    folder: str | None
    card: Mapping[str, str]
    found: list[str]


def inspect(
    spec: ClusterSpec, timeout: float, folder: str | None = None, script: str | None = None
) -> Report:
    """Check a cluster from one of its workers; every other does the same at the same time.

    Args:
        spec: The cluster.
        timeout: Seconds to wait until all are there.
        folder: A directory that should be the same on all.
        script: The script that should be the same on all.

    Returns:
        The report, the same findings on every worker.
    """
    if spec.num_workers == 1:
        return Report(workers=1, findings=(), checked=("one worker has nobody to reach",))
    found = check.names(spec, {host: wire.addresses_of(host) for host, _ in spec.workers})
    known = spec.addresses
    workers = {i: known[i] if i < len(known) else "address unknown" for i in range(spec.num_workers)}
    coordinator = spec.workers[0 if spec.count is not None else spec.chief]
    assert coordinator[1] is not None  # a cluster of several workers has ports
    meeting = (coordinator[0], coordinator[1])
    card = _card(script)
    # the card says only that this is a check: what differs is to be found, and no training is to be met
    try:
        lines = meet(meeting, workers, spec.index, {"purpose": "phalanx cluster check"}, timeout, spec.chief)
    except ClusterError as error:
        return Report(workers=spec.num_workers, findings=(*found, str(error)), checked=("who is there",))
    try:
        host = _host(spec, lines)
        try:
            with probe.answering(host) as port:
                own = _Own(spec.index, host, port, folder, card, found)
                return _lead(spec, lines, own) if spec.is_chief else _follow(spec, lines[spec.chief], own)
        except OSError as error:
            for line in lines.values():
                line.send({"error": _not_ours(spec.index, host, error)})
            found.append(_not_ours(spec.index, host, error))
            return Report(workers=spec.num_workers, findings=tuple(found), checked=("addresses",))
    finally:
        for line in lines.values():
            line.close()


def _card(script: str | None) -> dict[str, str]:
    try:
        card = machine.card(script)
    except OSError as error:
        raise SettingError(
            message(
                "A check compares the script on all workers, so that each must be able to read it.",
                f"{script}: {type(error).__name__}: {error.strerror}",
                f"ls -l {script}",
            )
        ) from error
    if script is None:
        del card[machine.SCRIPT]  # what runs here is the check
    return card


def _host(spec: ClusterSpec, lines: Mapping[int, wire.Wire]) -> str:
    """This worker's address: the cluster's word for it, or the one that leads to the chief."""
    if spec.count is None:
        return spec.workers[spec.index][0]
    return str(next(iter(lines.values())).socket.getsockname()[0])


def _lead(spec: ClusterSpec, lines: Mapping[int, wire.Wire], own: _Own) -> Report:
    said = {own.index: _hello(own)}
    gone: list[str] = []

    def ask(worker: int, question: dict[str, Any], seconds: float = _ANSWER) -> dict[str, Any]:
        if worker == own.index:
            return _answer(question, own)
        lines[worker].send(question)
        answer = lines[worker].receive(wire.now() + seconds)
        if answer is None or "error" in answer:
            raise _Gone(worker, str(answer["error"]) if answer else "")
        return answer

    measured: list[Line] = []
    clocks: dict[int, float] = {}
    blind: dict[int, str] = {}
    findings: list[str] = []
    try:
        for worker in lines:
            said[worker] = ask(worker, {"ask": "hello"})
            before = machine.clock()
            theirs = _number(ask(worker, {"ask": "clock"})["clock"])
            clocks[worker] = theirs - (before + machine.clock()) / 2
        hosts = {worker: _place(each) for worker, each in said.items()}
        if own.folder is not None:
            blind = _share(own, lines, ask)
        for source, target in check.pairs(spec.num_workers):
            where = {"ask": "way", "host": hosts[target][0], "port": hosts[target][1]}
            answer = ask(source, where, _WAY + _ANSWER)
            ms, mb, why = _number(answer["ms"]), _number(answer["mb"]), _one_line(answer["why"])
            measured.append(Line(source=source, target=target, milliseconds=ms, megabytes=mb, error=why))
        findings = [text for worker in sorted(said) for text in map(str, said[worker]["found"])]
        findings += check.cards({worker: dict(each["card"]) for worker, each in said.items()}, own.index)
        findings += check.clocks(clocks)
        findings += check.shared(own.folder or "", blind)
        findings += check.ways(measured, hosts)
    except (_Gone, KeyError, TypeError, ValueError, OverflowError) as error:
        gone.append(str(error) if isinstance(error, _Gone) else f"an answer that is none: {error}")
    report = Report(
        workers=spec.num_workers,
        findings=tuple(map(_plain, [*own.found, *gone] if gone else findings)),
        lines=tuple(measured),
        checked=_checked(own),
    )
    for line in lines.values():
        line.send({"ask": "end", "findings": _fitting(report.findings)})
    return report


class _Gone(Exception):
    def __init__(self, worker: int, text: str) -> None:
        super().__init__(
            text
            or message(
                "Every worker stays until the check is done.",
                f"worker {worker} gave no answer within {_ANSWER:g} s, or ended",
                f"look at the output of worker {worker}",
            )
        )


def _follow(spec: ClusterSpec, line: wire.Wire, own: _Own) -> Report:
    while True:
        question = line.receive(wire.now() + _TURN)
        if question is None or question.get("ask") not in ("end", *_ANSWERS):
            text = message(
                "The chief leads the check to its end.",
                f"worker {spec.chief} went away, or said {quote(str(question))}",
                f"look at the output of worker {spec.chief}",
            )
            return Report(workers=spec.num_workers, findings=(*own.found, text), checked=_checked(own))
        if question["ask"] == "end":
            findings = tuple(_plain(str(text)) for text in question.get("findings", ()))
            return Report(workers=spec.num_workers, findings=findings, checked=_checked(own))
        line.send(_answer(question, own))


def _place(said: Mapping[str, Any]) -> tuple[str, int]:
    host, port = str(said["host"]), int(said["port"])
    if not is_host(host) or not 0 < port < 65536:
        raise ValueError(quote(f"{host}:{port}"))
    return host, port


def _plain(text: str) -> str:
    """A text from the network, so that nothing in it acts on a terminal or passes for a line of ours."""
    first, *rest = filter(str.strip, text.split("\n")) if text.strip() else [""]
    lines = [first, *(f"  {line.strip()}" for line in rest)]
    return "\n".join("".join(each if each.isprintable() else "?" for each in line) for line in lines)


def _fitting(findings: Sequence[str]) -> list[str]:
    """As many findings as one message holds, and a last one that says how many do not fit."""
    kept: list[str] = []
    room = _ROOM
    for text in findings[:_MOST]:
        cut = text[:_LONGEST]
        room -= len(json.dumps(cut))  # a character beyond ASCII travels as six bytes or twelve
        if room < 0:
            break
        kept.append(cut)
    if len(kept) < len(findings):
        kept.append(
            message(
                "A check tells every worker its first findings.",
                f"{len(findings) - len(kept)} more were found",
                "mend these first, then check again",
            )
        )
    return kept


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(quote(str(value)))
    return number


def _hello(own: _Own) -> dict[str, Any]:
    return {"card": dict(own.card), "host": own.host, "port": own.port, "found": _fitting(own.found)}


def _way(question: Mapping[str, Any]) -> dict[str, Any]:
    found = probe.measure(str(question["host"]), int(question["port"]), _WAY)
    if isinstance(found, str):
        return {"ms": 0.0, "mb": 0.0, "why": found}
    return {"ms": found.milliseconds, "mb": found.megabytes, "why": ""}


def _share(own: _Own, lines: Mapping[int, wire.Wire], ask: Callable[..., dict[str, Any]]) -> dict[int, str]:
    """The chief writes; the others read that and write back."""
    folder, blind = str(own.folder), {}
    with contextlib.ExitStack() as kept:
        try:
            name, token = kept.enter_context(files.token(folder))
        except OSError as error:
            return {own.index: f"the chief cannot write there: {error.strerror or error}"}
        for worker in lines:
            answer = ask(worker, {"ask": "shared", "name": name, "token": token})
            if answer["why"]:
                blind[worker] = _one_line(answer["why"])
    return blind


def _read_shared(question: Mapping[str, Any], own: _Own) -> dict[str, Any]:
    if own.folder is None:
        return {"why": "this worker was started without --shared"}
    try:
        if not files.holds(own.folder, str(question["name"]), str(question["token"]), _LATE):
            return {"why": "what the chief has just written is not there"}
        with files.token(own.folder):
            return {"why": ""}
    except OSError as error:
        return {"why": f"{error.strerror or error}"}


_ANSWERS: dict[str, Callable[[Mapping[str, Any], _Own], dict[str, Any]]] = {
    "hello": lambda question, own: _hello(own),
    "clock": lambda question, own: {"clock": machine.clock()},
    "shared": _read_shared,
    "way": lambda question, own: _way(question),
}


def _answer(question: Mapping[str, Any], own: _Own) -> dict[str, Any]:
    return _ANSWERS[str(question["ask"])](question, own)


def _checked(own: _Own) -> tuple[str, ...]:
    folder = ("the shared directory",) if own.folder is not None else ()
    return ("names", "ports both ways", "versions and script", "clocks", *folder)


def _not_ours(index: int, host: str, error: OSError) -> str:
    near = " (loopback)" if is_loopback(host) else ""
    return message(
        "A worker listens at the address that the cluster names, which is its machine's own.",
        f"worker {index} at {host}{near}: {error.strerror or error}",
        "hostname -f; hostname -I   # on that machine: its name and addresses",
    )
