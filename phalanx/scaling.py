"""How learning rate, moments and warmup follow the batch: formulas, each with its reason and reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.errors import SettingError, message

RULES = ("auto", "linear", "sqrt", "none")

GOYAL = "Goyal et al. 2017"
KRIZHEVSKY = "Krizhevsky 2014"
MALLADI = "Malladi et al. 2022"
LARS = "You et al. 2017"
LAMB = "You et al. 2020"

# Optimizer class, lower case -> (rule of "auto", why, reference).
_AUTO = {
    "sgd": ("linear", "auto: SGD, with or without momentum", GOYAL),
    "adam": ("sqrt", "auto: Adam family", MALLADI),
    "adamw": ("sqrt", "auto: Adam family", MALLADI),
    "nadam": ("sqrt", "auto: Adam family", MALLADI),
    "rmsprop": ("sqrt", "auto: Adam family", MALLADI),
    "lamb": ("sqrt", "auto: LAMB", LAMB),
    "lars": ("linear", "auto: LARS", LARS),
}
_DECAYS = {"adam": ("beta_1", "beta_2"), "adamw": ("beta_1", "beta_2"), "rmsprop": ("rho",)}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A scaling rule with the reason it was taken.

    Args:
        name: `"linear"`, `"sqrt"` or `"none"`.
        why: Who chose it.
        reference: Where it comes from.
    """

    name: str
    why: str
    reference: str

    def rate_factor(self, factor: float) -> float:
        """What the learning rate is multiplied by when the batch is multiplied by `factor`.

        Example:
            >>> Rule(name="sqrt", why="given", reference="").rate_factor(4)
            2.0
        """
        return {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[self.name]

    def formula(self, rate: str, factor: float) -> str:
        """The formula with its numbers, as text."""
        how = {"linear": f" x {factor:g}", "sqrt": f" x sqrt({factor:g})", "none": ""}
        return rate + how[self.name]


def choose_rule(rule: str, optimizers: Sequence[str]) -> Rule:
    """The rule for an optimizer.

    Args:
        rule: `"auto"`, `"linear"`, `"sqrt"` or `"none"`.
        optimizers: Names of the optimizer's class and of those that it derives from, nearest first.

    Returns:
        The rule.

    Raises:
        SettingError: The rule does not exist, or `"auto"` does not know the optimizer.

    Example:
        >>> choose_rule("auto", ["SGD"]).name
        'linear'
    """
    if rule not in RULES:
        raise SettingError(
            message(
                f"A scaling rule is one of {', '.join(map(repr, RULES))}.",
                f"rule={rule!r}",
                'phalanx.Recipe(..., rule="auto")',
            )
        )
    known = next((_AUTO[name.lower()] for name in optimizers if name.lower() in _AUTO), None)
    if rule == "auto":
        if known is None:
            raise SettingError(
                message(
                    f'rule="auto" knows the optimizers {", ".join(sorted(_AUTO))}; choose for others.',
                    f"optimizer={optimizers[0] if optimizers else None!r}",
                    'phalanx.Recipe(..., rule="sqrt")   # or "linear", or "none"',
                )
            )
        return Rule(name=known[0], why=known[1], reference=known[2])
    adam = known is not None and known[2] == MALLADI
    sources = {"linear": GOYAL, "sqrt": MALLADI if adam else KRIZHEVSKY, "none": "-"}
    return Rule(name=rule, why="given", reference=sources[rule])


def moment_names(optimizers: Sequence[str]) -> tuple[str, ...]:
    """Arguments of an optimizer that the square-root rule for adaptive methods changes, with `epsilon`.

    Example:
        >>> moment_names(["Adam"])
        ('beta_1', 'beta_2', 'epsilon')
        >>> moment_names(["SGD"])
        ()
    """
    found = next((_DECAYS[name.lower()] for name in optimizers if name.lower() in _DECAYS), ())
    return (*found, "epsilon") if found else ()


def scale_moment(name: str, value: float, factor: float) -> tuple[float, str]:
    """A moment decay or epsilon for a batch `factor` times as large.

    A decay becomes `1 - factor * (1 - decay)`, so that the average spans as many rows as before, and not
    below 0; epsilon becomes `epsilon / sqrt(factor)`, as the gradient's noise does.

    Args:
        name: `"beta_1"`, `"beta_2"`, `"rho"` or `"epsilon"`.
        value: At the base batch.
        factor: New batch over base batch.

    Returns:
        The new value, and its formula with numbers.

    Example:
        >>> scale_moment("beta_2", 0.999, 4)
        (0.996, '1 - 4 x (1 - 0.999)')

    References:
        Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms".
    """
    if name == "epsilon":
        return value / math.sqrt(factor), f"{value:g} / sqrt({factor:g})"
    scaled = round(1 - factor * (1 - value), 12)
    return max(0.0, scaled), f"1 - {factor:g} x (1 - {value:g})" + ("" if scaled >= 0 else ", at least 0")


def warmup_multiplier(update: float, warmup_steps: int, rate_factor: float) -> float:
    """What the scaled rate is multiplied by at an update: from the base rate up to the scaled one.

    Args:
        update: Optimizer updates done so far, 0 before the first.
        warmup_steps: Updates until the scaled rate holds; 0 for none.
        rate_factor: Scaled rate over base rate. A rate that did not grow needs no warmup.

    Returns:
        `1 / rate_factor` at update 0, 1 from update `warmup_steps` on, linear between.

    Example:
        >>> [0.4 * warmup_multiplier(u, 5, 4) for u in (0, 5, 6)]
        [0.1, 0.4, 0.4]

    References:
        Goyal et al. 2017, section 2.2, gradual warmup.
    """
    if warmup_steps == 0 or rate_factor <= 1:
        return 1.0
    start = 1 / rate_factor
    return start + (1 - start) * min(update / warmup_steps, 1.0)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What is known when the warnings are judged.

    Args:
        rule: Name of the scaling rule.
        view: The strategy's view.
        replicas: Model copies.
        batch_per_replica: Rows of one replica's share of a batch.
        global_batch: Rows of one batch over all replicas.
        update_batch: Rows of one optimizer update.
        factor: `update_batch` over the base batch.
        warmup_steps: Updates of warmup.
        total_updates: Updates of the whole training, if known.
        dataset_size: Rows of the data, if known.
        smallest_busy_batch: Rows per replica under which the device is idle, if measured.
        moments: Moment decays at the base batch, by name.
    """

    rule: str
    view: str
    replicas: int
    batch_per_replica: int
    global_batch: int
    update_batch: int
    factor: float
    warmup_steps: int
    total_updates: int | None
    dataset_size: int | None
    smallest_busy_batch: int | None
    moments: Mapping[str, float]


BATCH_NORM_ROWS = 32
LINEAR_LIMIT = 8192
WARMUP_SHARE = 0.1


def judge(n: Numbers) -> list[str]:
    """Where the numbers of a plan stop being good advice.

    Args:
        n: The numbers.

    Returns:
        One sentence each, with the numbers in it.
    """
    found = []
    if n.view == "replica" and n.replicas > 1 and n.batch_per_replica < BATCH_NORM_ROWS:
        found.append(
            f"Batch normalization in the replica view takes its statistics from {n.batch_per_replica} rows; "
            f'under {BATCH_NORM_ROWS} they are noisy. Use view="global": {n.global_batch} rows.'
        )
    if n.rule == "linear" and n.update_batch > LINEAR_LIMIT and n.factor > 1:
        found.append(
            f"The linear rule was shown up to {LINEAR_LIMIT:,} rows per update ({GOYAL}); "
            f'this plan has {n.update_batch:,}. Try rule="sqrt", or LARS / LAMB.'
        )
    if n.total_updates is not None and n.warmup_steps > WARMUP_SHARE * n.total_updates:
        share = n.warmup_steps / n.total_updates if n.total_updates else math.inf
        found.append(
            f"Warmup takes {n.warmup_steps:,} of {n.total_updates:,} updates ({share:.0%}); "
            f"a tenth, {int(WARMUP_SHARE * n.total_updates):,}, is the usual limit."
        )
    if n.dataset_size is not None and n.update_batch > n.dataset_size:
        found.append(
            f"One update takes {n.update_batch:,} rows, but the data has {n.dataset_size:,}: "
            "every update would see all of it, and the scaled rate counts rows that are not there."
        )
    if n.smallest_busy_batch is not None and n.batch_per_replica < n.smallest_busy_batch:
        found.append(
            f"A replica gets {n.batch_per_replica} rows; the device was measured idle under "
            f"{n.smallest_busy_batch}. Use fewer replicas or batch_per_replica={n.smallest_busy_batch}."
        )
    for name, decay in n.moments.items():
        if name != "epsilon" and n.factor * (1 - decay) >= 1:
            found.append(
                f"The square-root rule would need {name} = 1 - {n.factor:g} x (1 - {decay:g}), which is not "
                f"above 0: it holds up to {1 / (1 - decay):.4g} times the base batch ({MALLADI})."
            )
    return found
