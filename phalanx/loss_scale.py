"""A scaled loss and true gradients, for a `train_step` of one's own under mixed_float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.engine import keras as engine


def get_scaled_loss(optimizer: Any, loss: Any, *, optimizer_variables: Sequence[Any] | None = None) -> Any:
    """The loss to differentiate: times the loss scale, so that small float16 gradients do not vanish.

    Use it inside the function that is differentiated, in an overridden `train_step(state, data)`. An
    optimizer that does not scale (any but a `LossScaleOptimizer`) leaves the loss as it is, so one
    `train_step` serves all dtype policies.

    Args:
        optimizer: The model's optimizer.
        loss: The loss, a scalar.
        optimizer_variables: The optimizer's variables in the step's state. Under a strategy they are known;
            a compiled step of plain Keras, or of your own, has to hand them over.

    Returns:
        A scalar of the loss's shape.

    Raises:
        SettingError: The first argument is no optimizer.
        UnsupportedError: A compiled step without a strategy did not hand `optimizer_variables` over, or
            the optimizer has a fixed `loss_scale_factor`.

    Example:
        >>> import keras, phalanx
        >>> optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=1024.0)
        >>> float(phalanx.get_scaled_loss(optimizer, keras.ops.array(0.5)))
        512.0
        >>> float(phalanx.get_scaled_loss(keras.optimizers.SGD(), keras.ops.array(0.5)))
        0.5

    References:
        Micikevicius et al. 2018, "Mixed Precision Training"; the `LossScaleOptimizer` of TensorFlow.
    """
    return engine.scale_up(optimizer, loss, optimizer_variables)


def get_unscaled_gradients(
    optimizer: Any, gradients: Sequence[Any], *, optimizer_variables: Sequence[Any] | None = None
) -> Any:
    """The true gradients of a scaled loss, to clip or to look at before the optimizer gets them.

    Keras divides by the loss scale when it applies gradients. Phalanx remembers that these were divided
    already, so that they, or what you made of them, are not divided twice; and if one of them was not finite,
    the step is skipped whatever you made of it. Call it in `train_step` itself, not in a function that you
    `jax.jit` on your own.

    Args:
        optimizer: The model's optimizer.
        gradients: One gradient per trainable variable, of the loss that `get_scaled_loss` gave.
        optimizer_variables: See `get_scaled_loss`.

    Returns:
        The gradients, divided by the loss scale; unchanged for an optimizer that does not scale.

    Raises:
        SettingError: The first argument is no optimizer.
        UnsupportedError: The loss was not scaled; or see `get_scaled_loss`.

    Example:
        >>> import keras, phalanx
        >>> optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=1024.0)
        >>> loss = phalanx.get_scaled_loss(optimizer, keras.ops.array(0.5))
        >>> (gradient,) = phalanx.get_unscaled_gradients(optimizer, [keras.ops.array(512.0)])
        >>> float(gradient)
        0.5

    References:
        Micikevicius et al. 2018, "Mixed Precision Training"; the `LossScaleOptimizer` of TensorFlow.
    """
    return engine.unscale(optimizer, gradients, optimizer_variables)
