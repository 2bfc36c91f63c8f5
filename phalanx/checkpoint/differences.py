"""How a model differs from the one that was saved, in words, before any array is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from phalanx.checkpoint.manifest import Entry

_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


def differences(
    saved: Sequence[Entry], wanted: Sequence[Entry], saved_optimizer: str, wanted_optimizer: str
) -> list[str]:
    """Compare a backup with a model.

    Keras numbers its names within a process (`dense_3`), so that equal models may differ in the numbers; they
    count only where both have the same names.

    Args:
        saved: The model's arrays as the backup lists them.
        wanted: As the model has them.
        saved_optimizer: Class of the optimizer then.
        wanted_optimizer: And now.

    Returns:
        One line for each difference; none if the backup fits.
    """
    if saved_optimizer != wanted_optimizer:
        text = f"the optimizer is {wanted_optimizer}, the backup's was {saved_optimizer}"
        return [text, *_compare(_without_optimizer(saved), _without_optimizer(wanted))]
    return _compare(saved, wanted)


def _without_optimizer(entries: Sequence[Entry]) -> list[Entry]:
    return [each for each in entries if each.part != "optimizer"]


def _compare(saved: Sequence[Entry], wanted: Sequence[Entry]) -> list[str]:
    exact = {each.path for each in saved} == {each.path for each in wanted}
    then, now = _named(saved, exact), _named(wanted, exact)
    moved = {name for name in then.keys() & now.keys() if then[name].part != now[name].part}
    lines = []
    for name, each in then.items():
        if name not in now:
            lines.append(f"{each.path} ({each.part}): saved {each.form}, the model has none")
        elif name in moved:
            lines.append(f"{each.path}: saved as {each.part}, {now[name].part} in the model")
        elif (each.shape, each.dtype) != (now[name].shape, now[name].dtype):
            lines.append(f"{each.path} ({each.part}): saved {each.form}, the model wants {now[name].form}")
    lines += [
        f"{each.path} ({each.part}): none saved, the model wants {each.form}"
        for name, each in now.items()
        if name not in then
    ]
    if not lines and list(then) != list(now):
        first = next(
            pair for pair in zip(then.values(), now.values(), strict=True) if pair[0].path != pair[1].path
        )
        lines.append(f"another order: {first[0].path} was saved where the model has {first[1].path}")
    return lines


def _named(entries: Sequence[Entry], exact: bool) -> dict[tuple[str, int], Entry]:
    """Entries by what stays of their path, and how many of that name came before."""
    seen: Counter[str] = Counter()
    found = {}
    for each in entries:
        name = each.path if exact else _NUMBER.sub("", each.path)
        name = f"{'metrics' if each.part == 'metrics' else ''}{name}"
        found[name, seen[name]] = each
        seen[name] += 1
    return found
