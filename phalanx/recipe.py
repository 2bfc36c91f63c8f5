"""One dial, the batch per replica; batch, learning rate, moments and warmup follow, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from phalanx import scaling
from phalanx.engine import keras as engine
from phalanx.errors import SettingError, message, warn
from phalanx.noise import Tradeoff
from phalanx.plan import Plan, said
from phalanx.strategies.base import Strategy
from phalanx.strategies.one_device import get_strategy


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was tuned on one device, and the batch per replica to train with on many.

    Args:
        batch_per_replica: Rows that one replica takes of each batch.
        learning_rate: The rate that was tuned at `base_batch`: a number, a Keras schedule, or a function that
            makes one from the number of updates of the whole training.
        base_batch: Rows per update at which the rate was tuned; `batch_per_replica` if not given.
        rule: How the rate follows the batch: `"linear"`, `"sqrt"`, `"none"`, or `"auto"`: linear for SGD,
            square root for the Adam family.
        warmup_steps: Optimizer updates over which the rate rises from the base rate to the scaled one.
        moments: Let the square-root rule change the Adam family's decays and epsilon, too.

    Raises:
        SettingError: A number outside its rule, named with its value.

    Example:
        >>> import phalanx
        >>> recipe = phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3, warmup_steps=500)
        >>> plan = recipe.plan(phalanx.OneDeviceStrategy(), optimizer="adam", dataset_size=60_000)
        >>> plan.global_batch, plan.scaled_rate, plan.steps_per_epoch
        (64, 0.001, 938)

    References:
        Goyal et al. 2017; Krizhevsky 2014; Malladi et al. 2022; You et al. 2017 (LARS) and 2020 (LAMB).
    """

    batch_per_replica: int
    learning_rate: Any
    base_batch: int | None = None
    rule: str = "auto"
    warmup_steps: int = 0
    moments: bool = True

    def __post_init__(self) -> None:
        _check_count("batch_per_replica", self.batch_per_replica, 1)
        if self.base_batch is not None:
            _check_count("base_batch", self.base_batch, 1)
        _check_count("warmup_steps", self.warmup_steps, 0)
        if not isinstance(self.moments, bool):
            raise SettingError(
                message(
                    "moments is True or False.", f"moments={self.moments!r}", "phalanx.Recipe(moments=False)"
                )
            )
        if self.rule not in scaling.RULES:
            scaling.choose_rule(self.rule, [])
        rate = self.learning_rate
        if callable(rate) and not isinstance(rate, type):
            return
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
            raise SettingError(
                message(
                    "A learning rate is a finite number above 0, a Keras schedule, or a function for one.",
                    f"learning_rate={rate!r}",
                    "phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3)",
                )
            )

    def plan(
        self,
        strategy: Any = None,
        optimizer: Any = "adam",
        dataset_size: int | None = None,
        epochs: int | None = None,
        *,
        accumulation: int | None = None,
        noise_scale: float | None = None,
        smallest_busy_batch: int | None = None,
    ) -> Plan:
        """Derive every number for a strategy and an optimizer.

        Args:
            strategy: Where it will train; the strategy in force if not given.
            optimizer: A Keras optimizer's name, class or instance; an instance's own settings are kept, and
                its moments are the base values.
            dataset_size: Rows of the training data.
            epochs: Passes over them, to judge the warmup.
            accumulation: Batches whose gradients make one update; the optimizer instance's
                `gradient_accumulation_steps`, or 1, if not given.
            noise_scale: Measured by `phalanx.callbacks.GradientNoiseScale`, in rows.
            smallest_busy_batch: Rows per replica under which the device was measured idle.

        Returns:
            The plan; `print` it to read each number with its formula.

        Raises:
            SettingError: A number outside its rule, or an optimizer that `rule="auto"` does not know.
        """
        strategy = get_strategy() if strategy is None else strategy
        for name, value in (
            ("dataset_size", dataset_size),
            ("epochs", epochs),
            ("accumulation", accumulation),
        ):
            if value is not None:
                _check_count(name, value, 1)
        _check_plan(strategy, optimizer, smallest_busy_batch)
        options = engine.optimizer_options(optimizer)
        accumulation = _accumulation(accumulation, options.pop("gradient_accumulation_steps", None))
        classes = engine.optimizer_classes(optimizer)
        rule = scaling.choose_rule(self.rule, classes)
        self._check_one_rate(optimizer)
        base = self.base_batch or self.batch_per_replica
        global_batch = self.batch_per_replica * strategy.num_replicas_in_sync
        factor = global_batch * accumulation / base
        names = scaling.moment_names(classes) if rule.name == "sqrt" and self.moments and factor != 1 else ()
        moments = engine.optimizer_arguments(optimizer, names)
        steps = None if dataset_size is None else -(-dataset_size // global_batch)
        updates = None if steps is None or epochs is None else steps * epochs // accumulation
        plan = Plan(
            learning_rate_at_base=self._rate(updates),
            warmup_steps=self.warmup_steps,
            batch_per_replica=self.batch_per_replica,
            base_batch_given=self.base_batch is not None,
            strategy=type(strategy).__name__,
            replicas=strategy.num_replicas_in_sync,
            view=strategy.view,
            optimizer=classes[0],
            rule=rule,
            base_batch=base,
            global_batch=global_batch,
            accumulation=accumulation,
            moments=moments,
            options=options,
            dataset_size=dataset_size,
            steps_per_epoch=steps,
            epochs=epochs,
            total_updates=updates,
            tradeoff=None
            if noise_scale is None
            else Tradeoff(batch=global_batch * accumulation, noise_scale=noise_scale),
            smallest_busy_batch=smallest_busy_batch,
        )
        for sentence in plan.warnings:
            warn(sentence)
        return plan

    def _rate(self, updates: int | None) -> Any:
        rate = self.learning_rate
        if engine.is_schedule(rate) or not callable(rate):
            return rate
        if updates is None:
            raise SettingError(
                message(
                    "A rate that is made from the number of updates needs that number.",
                    "a function as learning_rate, and no dataset_size and epochs",
                    "recipe.plan(strategy, optimizer, dataset_size=60_000, epochs=20)",
                )
            )
        made = rate(updates)
        Recipe(batch_per_replica=1, learning_rate=made)  # checks it
        return made

    def _check_one_rate(self, optimizer: Any) -> None:
        rate = engine.optimizer_rate(optimizer)
        own = self.learning_rate
        if rate is None or rate is own:
            return
        if callable(rate) or callable(own) or not math.isclose(rate, own, rel_tol=1e-6):  # float32 in Keras
            raise SettingError(
                message(
                    "The base learning rate is the recipe's alone: one number or one schedule.",
                    f"learning_rate={said(rate)} in the optimizer, learning_rate={said(self.learning_rate)} "
                    "in the recipe",
                    "phalanx.Recipe(learning_rate=...)   # and the optimizer without a rate of its own",
                )
            )


def _check_plan(strategy: Any, optimizer: Any, smallest_busy_batch: Any) -> None:
    if not isinstance(strategy, Strategy):
        raise SettingError(
            message(
                "A plan is for a strategy.",
                f"strategy={strategy!r}",
                "recipe.plan(phalanx.MirroredStrategy())",
            )
        )
    if not engine.is_optimizer(optimizer):
        raise SettingError(
            message(
                "optimizer is the name, class or instance of a Keras optimizer.",
                f"optimizer={optimizer!r}",
                'recipe.plan(strategy, optimizer="adam")',
            )
        )
    if smallest_busy_batch is not None:
        _check_count("smallest_busy_batch", smallest_busy_batch, 1)


def _accumulation(asked: int | None, own: int | None) -> int:
    """The plan's, or the optimizer instance's; both at once only if they agree."""
    if asked is not None and own is not None and asked != own:
        raise SettingError(
            message(
                "Accumulated batches are counted once.",
                f"accumulation={asked}, and gradient_accumulation_steps={own} in the optimizer",
                f"recipe.plan(strategy, optimizer, accumulation={own})",
            )
        )
    return asked or own or 1


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        paste = {"warmup_steps": "warmup_steps=500   # 0 for none"}.get(name, f"{name}=64")
        raise SettingError(
            message(f"{name} is a whole number, {least} or more.", f"{name}={value!r}", f"{paste}")
        )
