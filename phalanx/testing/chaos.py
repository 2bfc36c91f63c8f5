"""Disasters on purpose: a callback that brings about the faults of a script, each once across restarts.

    callbacks=[phalanx.callbacks.BackupAndRestore("backups"), phalanx.testing.chaos.Chaos()]

In a run without `PHALANX_CHAOS` it does nothing.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from phalanx.checkpoint import folder
from phalanx.engine import keras as engine
from phalanx.errors import SettingError, message
from phalanx.host import env, files, harm, store
from phalanx.testing.faults import ANYWHERE, KINDS, VARIABLE, Fault, Script, parse, random_faults
from phalanx.training.home import home_of

__all__ = ["ANYWHERE", "KINDS", "VARIABLE", "Chaos", "Fault", "Script", "parse", "random_faults"]

_MOMENT = 0.2  # seconds into a run's first step
_OPERATIONS = 12  # a save and a restore have at least so many operations on files; which one is drawn


class Chaos(engine.Callback):
    """Brings about the faults of a script and notes, beside each, when it did.

    In the folder of notes, `fault-000` and so on say which faults have happened; `worker-0.jsonl` and so on
    say when each worker began to train and when each step was done.

    Args:
        script: What happens; None reads the variable `PHALANX_CHAOS`.

    Raises:
        SettingError: The variable holds no script.
    """

    def __init__(self, script: Script | None = None) -> None:
        super().__init__()
        text = env.read(VARIABLE)
        self.script = script if script is not None or text is None else parse(text)
        self._worker = self._done = 0
        self._batch = -1
        self._first = True
        self._armed: set[int] = set()

    def on_train_begin(self, logs: Any = None) -> None:
        """Mend the disk, and say that training begins."""
        if self.script is None:
            return
        home = home_of(self.model)
        self._worker = int(getattr(home and home.strategy, "worker_index", 0))
        self._first = True
        store.make_folder(self.script.notes)
        if self._worker == 0 and files.kind(self.script.backups) == "folder":
            if any(each.what == "readonly" for each in self.script.faults):
                harm.make_read_only(self.script.backups, False)
            harm.fill(self.script.backups, False)
        self._note("begin", 0)
        if folder.latest(self.script.backups) is not None:
            for number, fault in self._again("kill restoring"):
                most = 1 if self._worker else 3  # the chief looks at every byte, the others read one manifest
                self._at_files(number, fault, "MainThread", writing=False, most=most)

    def get_state(self) -> dict[str, int]:
        """What a run that goes on must know: steps since its start, and the last batch of the epoch."""
        return {"done": self._done, "batch": self._batch}

    def set_state(self, state: dict[str, int]) -> None:
        """Go on counting."""
        self._done, self._batch = state["done"], state["batch"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Batches are counted anew."""
        self._batch = -1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Kill in the first step of a run, if the script says so."""
        if self.script is None or not self._first:
            return
        self._first = False
        self._note("first", self._done + 1)
        for number, fault in self._again("kill compiling"):
            harm.kill_later(_MOMENT, functools.partial(self._fired, number, fault))
            return

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Bring about what is due after this step."""
        if self.script is None:
            return
        self._done += batch - self._batch  # more than one where an execution has several
        self._batch, step = batch, self._done
        self._note("step", step)
        for number, fault in enumerate(self.script.faults):
            if fault.worker == self._worker and fault.step <= step and not self._is(number, "fault"):
                self._bring_about(number, fault)

    def _bring_about(self, number: int, fault: Fault) -> None:
        what, backups = fault.what, self._script.backups
        if what == "kill saving":
            self._at_files(number, fault, "phalanx-backup", writing=True, most=_OPERATIONS)
        elif what in ("kill restoring", "kill compiling"):
            if harm.claim(self._marker(number, "first"), self._describe(fault)):
                harm.send_to_self("SIGKILL")
        elif what in ("kill", "stop", "terminate", "flip"):
            if what == "flip":
                self._flip(manifest=number % 2 == 1)
            if self._fired(number, fault):
                harm.send_to_self({"stop": "SIGSTOP", "terminate": "SIGTERM"}.get(what, "SIGKILL"))
        elif what in ("readonly", "full") and self._fired(number, fault):
            store.make_folder(backups)
            refused = harm.make_read_only(backups, True) if what == "readonly" else harm.fill(backups, True)
            if refused:
                raise SettingError(
                    message(
                        f"The fault {what!r}: {KINDS[what]}.",
                        refused,
                        f"mount -t tmpfs -o size=64m none {backups}",
                    )
                )

    def _flip(self, manifest: bool) -> None:
        """Harm the newest backup, in its manifest or in its largest file."""
        newest = folder.latest(self._script.backups)
        if newest is None:
            return
        if manifest:
            harm.flip_byte(f"{newest}/manifest.json")
            return
        sizes = store.files(f"{newest}/arrays")
        harm.flip_byte(f"{newest}/arrays/{max(sizes, key=sizes.__getitem__)}")

    def _at_files(self, number: int, fault: Fault, thread: str, *, writing: bool, most: int) -> None:
        """Kill at an operation on files of a thread: which one follows from the fault alone."""
        if number not in self._armed:
            self._armed.add(number)
            at = 1 + (number + fault.step) % most
            note = functools.partial(self._fired, number, fault)
            harm.kill_at_files(thread, writing, self._script.backups, at, note)

    def _again(self, what: str) -> list[tuple[int, Fault]]:
        """Faults of a kind that this worker has met once, and is to meet again as it starts."""
        return [
            (number, fault)
            for number, fault in enumerate(self._script.faults)
            if fault.what == what
            and fault.worker == self._worker
            and (self._is(number, "first") or not fault.step)
            and not self._is(number, "fault")
        ]

    def _is(self, number: int, kind: str) -> bool:
        return files.kind(self._marker(number, kind)) == "file"

    def _fired(self, number: int, fault: Fault) -> bool:
        """Note that a fault happens now; False where it has happened."""
        return harm.claim(self._marker(number, "fault"), self._describe(fault))

    def _describe(self, fault: Fault) -> str:
        found = {"at": store.wall_clock(), "worker": fault.worker, "step": self._done, "what": fault.what}
        return json.dumps(found)

    def _marker(self, number: int, kind: str) -> str:
        return f"{self._script.notes}/{kind}-{number:03d}"

    def _note(self, what: str, step: int) -> None:
        line = json.dumps({"at": store.wall_clock(), "what": what, "step": step})
        harm.append(f"{self._script.notes}/worker-{self._worker}.jsonl", line)

    @property
    def _script(self) -> Script:
        assert self.script is not None
        return self.script
