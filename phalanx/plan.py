"""Every number that follows from a recipe, as a value that prints as a table and builds the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx import scaling
from phalanx.engine import keras as engine
from phalanx.errors import SettingError, message
from phalanx.noise import Tradeoff
from phalanx.text import table


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every number that follows from a recipe, for one strategy and optimizer; made by `Recipe.plan`.

    Attributes:
        global_batch: Rows of one batch over all replicas: `fit`'s `batch_size`.
        factor: Rows of one update over the base batch: what the rule scales by.
        steps_per_epoch: Batches of an epoch, the remainder included; None without `dataset_size`.
        total_updates: Optimizer updates of the whole training; None without `dataset_size` and `epochs`.
    """

    learning_rate_at_base: Any
    warmup_steps: int
    batch_per_replica: int
    base_batch_given: bool
    strategy: str
    replicas: int
    view: str
    optimizer: str
    rule: scaling.Rule
    base_batch: int
    global_batch: int
    accumulation: int
    moments: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dataset_size: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    total_updates: int | None = None
    tradeoff: Tradeoff | None = None
    smallest_busy_batch: int | None = None

    @property
    def update_batch(self) -> int:
        """Rows of one optimizer update: the global batch times the accumulated batches."""
        return self.global_batch * self.accumulation

    @property
    def factor(self) -> float:
        """Rows of one update over the base batch."""
        return self.update_batch / self.base_batch

    @property
    def rate_factor(self) -> float:
        """Scaled rate over base rate."""
        return self.rule.rate_factor(self.factor)

    @property
    def scaled_rate(self) -> float | None:
        """The rate after warmup; None where the base rate is a schedule."""
        rate = self.learning_rate_at_base
        return None if engine.is_schedule(rate) else rate * self.rate_factor

    @property
    def learning_rate(self) -> Any:
        """The Keras schedule: the base rate at update 0, the scaled one from update `warmup_steps` on.

        It depends on the optimizer's own count alone, so a resume or a second `compile` with the same
        optimizer goes on where it was.
        """
        return engine.schedule(
            self.learning_rate_at_base, self.rate_factor, self.warmup_steps, self.accumulation
        )

    @property
    def optimizer_updates(self) -> dict[str, float]:
        """Arguments of the optimizer that change with the batch, such as `beta_1`; empty if none does."""
        return {
            name: scaling.scale_moment(name, value, self.factor)[0] for name, value in self.moments.items()
        }

    @property
    def updates_per_epoch(self) -> float | None:
        """Optimizer updates of an epoch; not whole where accumulation carries over into the next one."""
        if self.steps_per_epoch is None:
            return None
        whole, rest = divmod(self.steps_per_epoch, self.accumulation)
        return self.steps_per_epoch / self.accumulation if rest else whole

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the plan stops being good advice, one sentence each."""
        return tuple(
            scaling.judge(
                scaling.Numbers(
                    rule=self.rule.name,
                    view=self.view,
                    replicas=self.replicas,
                    batch_per_replica=self.batch_per_replica,
                    global_batch=self.global_batch,
                    update_batch=self.update_batch,
                    factor=self.factor,
                    warmup_steps=self.warmup_steps,
                    total_updates=self.total_updates,
                    dataset_size=self.dataset_size,
                    smallest_busy_batch=self.smallest_busy_batch,
                    moments=self.moments,
                )
            )
        )

    def make_optimizer(self, optimizer: Any, **options: Any) -> Any:
        """Build the optimizer with the plan's rate, moments and accumulation.

        Args:
            optimizer: The Keras optimizer class that the plan was made for.
            **options: Its other arguments, such as `weight_decay`; they win over those of an instance that
                the plan was made with.

        Returns:
            The optimizer. Where there is nothing to warm up its rate is a plain number, so that callbacks
            such as `ReduceLROnPlateau` may change it.

        Raises:
            SettingError: Another optimizer than the plan's, or an argument that the plan derives.
        """
        if not isinstance(optimizer, type):
            raise SettingError(
                message(
                    "make_optimizer takes an optimizer's class.",
                    f"{optimizer!r}",
                    "plan.make_optimizer(keras.optimizers.Adam)",
                )
            )
        if self.optimizer.lower() not in (name.lower() for name in engine.optimizer_classes(optimizer)):
            raise SettingError(
                message(
                    "A plan is made for one optimizer, whose rule it follows.",
                    f"{engine.optimizer_classes(optimizer)[0]}, but the plan is for {self.optimizer}",
                    f'recipe.plan(strategy, optimizer="{engine.optimizer_classes(optimizer)[0].lower()}")',
                )
            )
        derived = {"learning_rate": self._rate(), **self.optimizer_updates}
        if self.accumulation > 1:
            derived["gradient_accumulation_steps"] = self.accumulation
        twice = [name for name in ("gradient_accumulation_steps", *derived) if name in options]
        if twice:
            raise SettingError(
                message(
                    "What a plan derives is given to the plan, not to the optimizer.",
                    ", ".join(f"{name}={said(options[name])}" for name in dict.fromkeys(twice)),
                    f"recipe.plan(strategy, optimizer=keras.optimizers.{self.optimizer}(beta_2=0.99))"
                    if "learning_rate" not in twice
                    else "phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3)",
                )
            )
        return optimizer(**{**self.options, **derived, **options})

    def _rate(self) -> Any:
        flat = not self.warmup_steps or self.rate_factor <= 1
        return self.scaled_rate if flat and self.scaled_rate is not None else self.learning_rate

    def __str__(self) -> str:
        notes = [f"! {sentence}" for sentence in self.warnings]
        if self.tradeoff:
            notes.insert(0, f"{self.tradeoff} (McCandlish et al. 2018)")
        rows = table(("what", "value", "how", "reference"), self._rows())
        return "\n\n".join([rows, *notes])

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rate = said(self.learning_rate_at_base)
        rows = [
            ("batch per replica", str(self.batch_per_replica), "given", ""),
            ("replicas", str(self.replicas), self.strategy, ""),
            ("global batch", str(self.global_batch), f"{self.batch_per_replica} x {self.replicas}", ""),
        ]
        if self.accumulation > 1:
            how = f"{self.global_batch} x {self.accumulation} accumulated"
            rows.append(("rows per update", str(self.update_batch), how, ""))
        base = "base_batch" if self.base_batch_given else "batch_per_replica"
        rows += [
            ("batch factor", f"{self.factor:g}", f"{self.update_batch} / {self.base_batch} ({base})", ""),
            ("rule", self.rule.name, self.rule.why, self.rule.reference),
            (
                "learning rate",
                f"{rate} x {self.rate_factor:g}" if self.scaled_rate is None else f"{self.scaled_rate:.6g}",
                self.rule.formula(rate, self.factor),
                self.rule.reference,
            ),
        ]
        for name, value in self.moments.items():
            scaled, how = scaling.scale_moment(name, value, self.factor)
            rows.append((name, f"{scaled:.6g}", how, scaling.MALLADI))
        rows.append(("warmup", *self._warmup()))
        if self.steps_per_epoch is not None:
            how = f"ceil({self.dataset_size} / {self.global_batch})"
            rows.append(("steps per epoch", str(self.steps_per_epoch), how, ""))
            how = f"{self.steps_per_epoch} / {self.accumulation}"
            rows.append(("updates per epoch", f"{self.updates_per_epoch:g}", how, ""))
        if self.total_updates is not None:
            how = f"{self.steps_per_epoch} x {self.epochs} epochs"
            rows.append(("updates in all", str(self.total_updates), how, ""))
        return rows

    def _warmup(self) -> tuple[str, str, str]:
        steps, factor = self.warmup_steps, self.rate_factor
        if steps == 0:
            return "none", "warmup_steps=0", ""
        if factor <= 1:
            return "none", f"{steps} updates given, but the rate does not grow", ""
        rate = self.learning_rate_at_base
        ends = (
            f"{rate:g} to {self.scaled_rate:.6g}" if self.scaled_rate is not None else f"x 1 to x {factor:g}"
        )
        return f"{steps} updates", f"from {ends}, a straight line", scaling.GOYAL


def said(rate: Any) -> str:
    """A rate for texts: its number, or the name of its schedule."""
    return f"{rate:g}" if isinstance(rate, (int, float)) else type(rate).__name__
