"""What must stay in float32 in 16-bit training, and when a loss scale is no help: facts in, reasons out.

The rules, and why each of them (figures: `docs/precision.md`):

* Probabilities (softmax, sigmoid) in float16 are found. Before it passes the softmax, the gradient of a row
  is 1/p times the loss scale, and float16 ends at 65504: steps are skipped until the scale is no help.
* Probabilities in bfloat16 are found: over 1 - 2^-9 they round to 1, and a row of the other class that is
  taken for this one so surely has gradient zero. The exception is a softmax under a categorical crossentropy,
  which is harmless: Keras divides by the sum, so 1 - p comes from the other probabilities, and is precise.
* Other outputs are found in float16 only, because it ends at 65504. In bfloat16 they are harmless: its range
  is that of float32, and Keras computes the loss of the rounded output in float32: no gradient vanishes.
* A loss that computes in 16 bits itself is always found: it adds up the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import SettingError, message

SHORT = ("float16", "bfloat16")
_PROBABILITIES = ("softmax", "sigmoid")
_LOST = {
    "float16": "the gradient of an unlikely row, 1/p times the loss scale, is infinite, and a step skipped",
    "bfloat16": "over 0.998 they round to 1, and a row that is wrong there has gradient zero",
}
_SKIPS_IN_A_ROW = 5
_SMALLEST_SCALE = 1.0


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What a strategy does about an output or a loss that computes in 16 bits.

    Args:
        strict: True makes an error, at `compile` or before the first step, of what is a warning otherwise.

    Raises:
        SettingError: `strict` is not a boolean.

    Example:
        >>> import phalanx
        >>> phalanx.Precision(strict=True)
        Precision(strict=True)

    References:
        Micikevicius et al. 2018, "Mixed Precision Training".
    """

    strict: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.strict, bool):
            raise SettingError(
                message(
                    "strict is True or False.",
                    f"strict={self.strict!r}",
                    "phalanx.Precision(strict=True)",
                )
            )


@dataclass(frozen=True, kw_only=True)
class Head:
    """One output of a model on its way to the loss.

    Args:
        layer: Name of the layer that makes it.
        kind: That layer's class.
        activation: Name of its activation; None if there is none or it is not known.
        computes: Dtype that the layer computes in.
        gives: Dtype of the output that the loss is given.
        loss: Name of the loss; None for an output without one.
        from_logits: True if the loss takes logits.
        normalises: True if the loss divides probabilities by their sum.
        loss_computes: Dtype that the loss computes in.
    """

    layer: str
    kind: str
    activation: str | None
    computes: str
    gives: str
    loss: str | None
    from_logits: bool = False
    normalises: bool = False
    loss_computes: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An output or loss in 16 bits.

    Args:
        layer: Name of the layer.
        reason: What it does, and what is lost by it.
        fix: The line to write instead.
    """

    layer: str
    reason: str
    fix: str


def findings(heads: Sequence[Head]) -> tuple[Finding, ...]:
    """What of a model's outputs runs in 16 bits and loses something by it.

    Args:
        heads: The outputs of the model.

    Returns:
        At most one finding per output, in their order; the reasons stand at the top of this file.

    Example:
        >>> facts = {"layer": "out", "kind": "Dense", "activation": "softmax", "loss": "kl_divergence"}
        >>> (found,) = findings([Head(**facts, computes="float16", gives="float16")])
        >>> print(found.fix)
        Dense(..., activation="softmax", dtype="float32", name="out")
    """
    found = (_probabilities(head) or _values(head) or _loss(head) for head in heads)
    return tuple(each for each in found if each is not None)


def text(found: Sequence[Finding]) -> str:
    """One three-part text about all findings of a model.

    Args:
        found: One or more findings.
    """
    fix = found[0].fix
    others = [repr(each.layer) for each in found[1:]]
    return message(
        "Outputs and their loss belong in float32, also where the model computes in 16 bits.",
        "; ".join(each.reason for each in found),
        f"{fix}   # likewise {', '.join(others)}" if others else fix,
    )


def trouble(in_a_row: int, scale: float) -> str | None:
    """Why a loss scale is no longer one that helps.

    Args:
        in_a_row: Steps skipped one after the other, up to now.
        scale: The loss scale after them.

    Returns:
        What is wrong, with its numbers; None while all is well.

    Example:
        >>> trouble(1, 16384.0)
        >>> trouble(5, 1024.0)
        '5 steps in a row had gradients that are not finite and were skipped; the loss scale is down to 1024'
    """
    if in_a_row >= _SKIPS_IN_A_ROW:
        return (
            f"{in_a_row} steps in a row had gradients that are not finite and were skipped; "
            f"the loss scale is down to {scale:g}"
        )
    if not _SMALLEST_SCALE < scale < float("inf"):
        return f"the loss scale is {scale:g}, so it no longer keeps small gradients from vanishing"
    return None


def trouble_text(reason: str) -> str:
    """The three-part text of a reason that `trouble` gave."""
    return message(
        "A float16 step is skipped now and then; gradients that stay infinite are not a matter of scale.",
        reason,
        'keras.config.set_dtype_policy("mixed_bfloat16")   # or look for NaN in the data, lower the learning '
        "rate, give layers with large outputs dtype='float32'",
    )


def _probabilities(head: Head) -> Finding | None:
    if head.activation not in _PROBABILITIES or head.computes not in SHORT:
        return None
    if head.computes == "bfloat16" and head.activation == "softmax" and head.normalises:
        return None
    return Finding(
        layer=head.layer,
        reason=f"output layer {_described(head)} computes its {head.activation} in {head.computes}: "
        f"{_LOST[head.computes]}",
        fix=_fixed(head),
    )


def _values(head: Head) -> Finding | None:
    if head.loss is None or head.gives != "float16":
        return None
    what = "logits" if head.from_logits else "values"
    return Finding(
        layer=head.layer,
        reason=f"output layer {_described(head)} hands its {what} to {head.loss} in float16: 11 binary "
        "digits, and infinity from 65520 on",
        fix=_fixed(head),
    )


def _loss(head: Head) -> Finding | None:
    if head.loss is None or head.loss_computes not in SHORT:
        return None
    return Finding(
        layer=head.layer,
        reason=f"the loss {head.loss} of layer {_described(head)} adds up rows in {head.loss_computes}",
        fix=f'{head.loss} with dtype="float32"   # keras.losses.MeanSquaredError(dtype="float32")',
    )


def _described(head: Head) -> str:
    return f"{head.layer!r} ({head.kind})"


def _fixed(head: Head) -> str:
    activation = f'activation="{head.activation}", ' if head.activation in _PROBABILITIES else ""
    if head.kind in ("Softmax", "Sigmoid"):
        activation = ""
    return f'{head.kind}(..., {activation}dtype="float32", name="{head.layer}")'
