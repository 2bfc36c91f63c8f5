"""Whether gradients may meet in one flat buffer and still be those of one device: decided from the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROW_BY_ROW = frozenset(
    [
        "Activation",
        "Add",
        "Attention",
        "Average",
        "AveragePooling1D",
        "AveragePooling2D",
        "AveragePooling3D",
        "CategoryEncoding",
        "Concatenate",
        "Conv1D",
        "Conv1DTranspose",
        "Conv2D",
        "Conv2DTranspose",
        "Conv3D",
        "Conv3DTranspose",
        "Cropping1D",
        "Cropping2D",
        "Cropping3D",
        "Dense",
        "DepthwiseConv1D",
        "DepthwiseConv2D",
        "Divide",
        "Dot",
        "Dropout",
        "EinsumDense",
        "ELU",
        "Embedding",
        "Flatten",
        "GlobalAveragePooling1D",
        "GlobalAveragePooling2D",
        "GlobalAveragePooling3D",
        "GlobalMaxPooling1D",
        "GlobalMaxPooling2D",
        "GlobalMaxPooling3D",
        "GroupNormalization",
        "GroupedQueryAttention",
        "GRU",
        "Identity",
        "InputLayer",
        "LayerNormalization",
        "LeakyReLU",
        "LSTM",
        "MaxPooling1D",
        "MaxPooling2D",
        "MaxPooling3D",
        "Maximum",
        "Minimum",
        "MultiHeadAttention",
        "Multiply",
        "Permute",
        "PReLU",
        "ReLU",
        "RepeatVector",
        "Rescaling",
        "Reshape",
        "RMSNormalization",
        "SeparableConv1D",
        "SeparableConv2D",
        "SimpleRNN",
        "Softmax",
        "Subtract",
        "TrueDivide",
        "UpSampling1D",
        "UpSampling2D",
        "UpSampling3D",
        "ZeroPadding1D",
        "ZeroPadding2D",
        "ZeroPadding3D",
    ]
)
"""Keras's own layers and operations that compute each row from that row alone."""

LOSSES = frozenset(
    [
        "BinaryCrossentropy",
        "BinaryFocalCrossentropy",
        "CategoricalCrossentropy",
        "CategoricalFocalCrossentropy",
        "CategoricalHinge",
        "CosineSimilarity",
        "Hinge",
        "Huber",
        "KLDivergence",
        "LogCosh",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
        "MeanSquaredLogarithmicError",
        "Poisson",
        "SparseCategoricalCrossentropy",
        "SquaredHinge",
    ]
)
"""Keras's own losses that are a number per row, averaged; their functions have the same names."""

_LOSS_NAMES = {name.lower() for name in LOSSES}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the decision needs to know of a model.

    Args:
        layers: Class names of its layers and operations; another library's with its module before it.
        losses: Class names of its losses, likewise.
        reductions: Their reductions.
        random: Names of layers that draw random numbers in training, in another way than one mask per row.
        masked: Names of layers that hide some places of a row from the loss.
        added: Names of layers that add losses of their own over the rows.
        half: Names of layers that compute in 16 bits, each with its type.
        own_call: Why the model's code is not known: a subclass with its own `call`, say; or None.
        own_step: Why its training step cannot be taken apart; or None.
    """

    layers: Sequence[str]
    losses: Sequence[str] = ()
    reductions: Sequence[str] = ()
    random: Sequence[str] = ()
    masked: Sequence[str] = ()
    added: Sequence[str] = ()
    half: Sequence[str] = ()
    own_call: str | None = None
    own_step: str | None = None


@dataclass(frozen=True)
class Travel:
    """How gradients travel between workers.

    Args:
        flat: True for one flat buffer, False for the compiler's own choice.
        reason: Why, as a sentence.
    """

    flat: bool
    reason: str

    def __str__(self) -> str:
        return f"{'one flat buffer' if self.flat else 'one by one'}: {self.reason}"


def decide(facts: Facts) -> Travel:
    """Choose how the gradients of a model in the global view travel between workers.

    Each replica may take the gradient of its own rows, and all meet in one buffer, only where that is the
    gradient of one device: every row by itself, no random numbers but masks of rows, a loss that averages. In
    float16 a part's own mean would be the parts' number of times larger before it is weighed, and skip other
    steps.

    Returns:
        The choice and its reason.

    Example:
        >>> print(decide(Facts(layers=["Dense"], losses=["MeanSquaredError"], reductions=["mean"])))
        one flat buffer: every layer and loss computes row by row
        >>> print(decide(Facts(layers=["Dense", "BatchNormalization"])))
        one by one: BatchNormalization is not known to compute row by row
    """
    unknown = [name for name in facts.layers if name not in ROW_BY_ROW]
    odd = [name for name in facts.losses if name.replace("_", "").lower() not in _LOSS_NAMES]
    other = [name for name in facts.reductions if name not in ("sum_over_batch_size", "mean")]
    reasons = (
        facts.own_step,
        facts.own_call,
        f"{facts.half[0]}, in which parts of a batch overflow and round apart" if facts.half else None,
        f"{facts.random[0]} draws random numbers" if facts.random else None,
        f"{unknown[0]} is not known to compute row by row" if unknown else None,
        f"{facts.masked[0]} masks places, which the loss counts over the batch" if facts.masked else None,
        f"{facts.added[0]} adds a loss over the rows" if facts.added else None,
        f"the loss {odd[0]} is not known to compute row by row" if odd else None,
        f"a loss has reduction {other[0]!r}" if other else None,
    )
    against = next((reason for reason in reasons if reason), None)
    return Travel(against is None, against or "every layer and loss computes row by row")
