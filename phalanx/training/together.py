"""What several workers decide together, in small exchanges at fixed points of the loops."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass

import numpy as np

from phalanx.data.feed import Feed
from phalanx.data.pipeline import PipelineSource
from phalanx.engine import keras as engine
from phalanx.engine import runtime
from phalanx.errors import CheckpointError, ScopeError, message, warn
from phalanx.host.watch import now
from phalanx.training.home import Home, changed

_BETWEEN = 0.5  # seconds from one look at the others to the next


def start(model: engine.Model, home: Home, what: str) -> None:
    """Begin a loop together: the same method everywhere, on the chief's values and random numbers.

    Args:
        model: The model, built.
        home: Its strategy.
        what: The method, for texts.

    Raises:
        WorkerLost: A worker calls something else, or does not come.
        ScopeError: The workers built different models.
    """
    exchange = home.strategy.exchange
    if exchange is None:
        return
    exchange.place = f"the start of {what}"
    said = exchange.gather(exchange.place, json.dumps(changed(model, home)))
    if any(map(json.loads, said)):
        _same_model(model, exchange)
    if what == "fit":
        state = exchange.from_chief("random numbers", json.dumps(engine.random_state()))
        engine.set_random_state(json.loads(state))


def _same_model(model: engine.Model, exchange: runtime.Exchange) -> None:
    """Make every worker's variables those of the chief."""
    variables = list({id(v): v for part in engine.variables_of(model) for v in part}.values())
    values = [np.asarray(engine.raw_value(v)) for v in variables]
    shapes = [f"{v.path} {value.shape} {value.dtype}" for v, value in zip(variables, values, strict=True)]
    theirs = exchange.from_chief("the model's variables", json.dumps(shapes))
    wrong = next(
        (pair for pair in _pairs(shapes, json.loads(theirs)) if _unnamed(pair[0]) != _unnamed(pair[1])), None
    )
    every = exchange.gather("a look at the model", json.dumps(wrong))
    for worker, text in enumerate(every):
        pair = json.loads(text)
        if pair is not None:
            raise ScopeError(
                message(
                    "Every worker builds the same model.",
                    f"worker {worker} has {pair[0]}, the chief has {pair[1]}",
                    "build the model from the same code and settings on every worker",
                )
            )
    digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
    digests = exchange.gather("values of the variables", digest)
    if len(set(digests)) == 1:
        return
    if runtime.process() == 0:
        others = [worker for worker, text in enumerate(digests) if text != digests[0]]
        warn(
            message(
                "All workers start from the chief's values.",
                f"workers {', '.join(map(str, others))} had others (another seed, or none), replaced now",
                "keras.utils.set_random_seed(0)   # the same on every worker",
            )
        )
    for variable, value in zip(variables, runtime.from_chief(values), strict=True):
        engine.move(variable, engine.on_this_device(value), None)


def _pairs(mine: list[str], theirs: list[str]) -> list[tuple[str, str]]:
    length = max(len(mine), len(theirs))
    return [
        (
            mine[i] if i < len(mine) else "no more variables",
            theirs[i] if i < len(theirs) else "no more variables",
        )
        for i in range(length)
    ]


def _unnamed(text: str) -> str:
    """Shape and dtype: names count up within a process, so that equal models may differ in them."""
    return text.split(" ", 1)[-1]


@dataclass(frozen=True)
class Word:
    """What a worker says to the others, or what all of them agreed on.

    Args:
        stop: Training ends.
        save: A backup is due by the chief's clock.
        leave: Why this worker was asked to go; empty if it was not.
        failed: What went wrong with a backup; empty if nothing did.
    """

    stop: bool = False
    save: bool = False
    leave: str = ""
    failed: str = ""


def agreed(words: list[Word]) -> Word:
    """What follows from the words of all workers, the chief's first.

    Example:
        >>> agreed([Word(save=True), Word(leave="SIGTERM")])
        Word(stop=False, save=True, leave='SIGTERM on worker 1', failed='')
    """
    leaving = [f"{word.leave} on worker {worker}" for worker, word in enumerate(words) if word.leave]
    return Word(
        stop=any(word.stop for word in words),
        save=words[0].save,
        leave=leaving[0] if leaving else "",
        failed=next((word.failed for word in words if word.failed), ""),
    )


class Pulse:
    """Agrees, now and then, whether to stop in the middle of an epoch, to save, or to leave.

    The chief says after how many steps all look again, from its own pace, so that a look costs little
    whatever a step costs.

    Args:
        exchange: Where workers tell each other; None for one worker, where nothing is asked.
        epoch: Which epoch it is, for texts.
        what: What has these steps, for texts.
    """

    def __init__(self, exchange: runtime.Exchange | None, epoch: int, what: str = "") -> None:
        self.exchange, self.step = exchange, 0
        self.place = f"epoch {epoch + 1}{what}"
        self._left = self._every = 1
        self._since = now()

    def look(self, own: Word, sure: bool = False) -> Word:
        """What all agree on after this step; nothing where they do not look.

        Args:
            own: What this worker has to say.
            sure: All look after this step; the same on all of them.
        """
        if self.exchange is None:
            return own
        self.step += 1
        self.exchange.place = f"step {self.step} of {self.place}"
        self._left -= 1
        if self._left and not sure:
            return Word()
        passed, steps = now() - self._since, self._every - self._left
        pace = max(1, min(10_000, math.ceil(steps * _BETWEEN / max(passed, 1e-6))))
        said = self.exchange.gather(
            "a step", json.dumps([dataclasses.astuple(own), min(pace, 10 * self._every)])
        )
        answers = [json.loads(each) for each in said]
        self._left = self._every = answers[0][1]
        self._since = now()
        return agreed([Word(*word) for word, _ in answers])


def epochs(home: Home, first: int, last: int) -> range:
    """The epochs to train, from the chief's first one: it alone may have restored a backup."""
    exchange = home.strategy.exchange
    if exchange is not None:
        first = int(exchange.from_chief("the first epoch", str(first)))
    return range(first, last)


def end_of_epoch(model: engine.Model, home: Home, own: Word) -> Word:
    """Stop together, and train on with the chief's learning rate."""
    exchange = home.strategy.exchange
    if exchange is None:
        return own
    rate = engine.learning_rate(model)
    said = [
        json.loads(each)
        for each in exchange.gather("the end of an epoch", json.dumps([dataclasses.astuple(own), rate]))
    ]
    if rate is not None and said[0][1] is not None and said[0][1] != rate:
        engine.set_learning_rate(model, said[0][1])
    return agreed([Word(*word) for word, _ in said])


def all_or_none(home: Home, what: str, error: Exception | None) -> None:
    """Raise on every worker what went wrong on one of them.

    Raises:
        CheckpointError: With this worker's own cause, or the first other one's.
    """
    exchange = home.strategy.exchange
    own = "" if error is None else str(error) or type(error).__name__
    texts = [] if exchange is None else exchange.gather(what, own)
    if error is not None:
        raise error
    for worker, text in enumerate(texts):
        if text:
            raise CheckpointError(f"On worker {worker}: {text}")


def same_data(home: Home, feed: Feed) -> None:
    """Refuse data of which the workers have other numbers of rows, batches or steps, before a step hangs.

    Of pipelines, the longest says how many steps an epoch has.

    Raises:
        ScopeError: On all workers, with the numbers of each.
    """
    exchange = home.strategy.exchange
    if exchange is None:
        return
    part = feed.source.own_batches if isinstance(feed.source, PipelineSource) else None
    own = {"batches": feed.num_batches, "steps": feed.steps, **feed.source.alike}
    answers = [json.loads(each) for each in exchange.gather(feed.source.name, json.dumps([own, part]))]
    said = [own for own, _ in answers]
    names = {name: None for each in said for name in each}
    odd = [name for name in names if len({each.get(name) for each in said}) > 1]
    if odd:
        raise ScopeError(
            message(
                "Every worker gives the same global batches, or the pipeline of its own.",
                f"{feed.source.name}: " + "; ".join(_has(odd, i, each) for i, each in enumerate(said)),
                "fit(x, y)   # all rows everywhere; or strategy.distribute_datasets_from_function(make)",
            )
        )
    if all(part is not None for _, part in answers):
        feed.expect(max(part for _, part in answers))


def _has(names: list[str], worker: int, said: dict[str, int | None]) -> str:
    return f"worker {worker} has " + ", ".join(f"{said.get(name) or 'no number of'} {name}" for name in names)
