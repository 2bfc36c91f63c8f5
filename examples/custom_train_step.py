"""A train_step of one's own under mixed_float16: gradients clipped at their true size, on all replicas.

    phalanx run --replicas 2 examples/custom_train_step.py

Float16 gradients are those of a scaled loss. The two marked lines are all that mixed precision asks of a step
in Keras's stateless style; under float32 and bfloat16 they change nothing, so one step serves all policies.
"""

from __future__ import annotations

import argparse
from typing import Any

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import digits
import jax
import keras
from keras import layers, ops

LARGEST_NORM = 1.0


class Clipped(keras.Model):
    """Clips the gradients of all weights together to a norm of at most `LARGEST_NORM`."""

    def train_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        """One update; `state` is (trainable, non-trainable, optimizer, metrics), lists of arrays."""
        trainable, non_trainable, optimizer, measured = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)

        def scaled_loss(trainable: Any, non_trainable: Any) -> Any:
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            loss = self.compute_loss(x, y, y_pred, weight)
            return phalanx.get_scaled_loss(self.optimizer, loss), (loss, y_pred, non_trainable)  # the first

        gradient = jax.grad(scaled_loss, has_aux=True)
        gradients, (loss, y_pred, non_trainable) = gradient(trainable, non_trainable)
        gradients = phalanx.get_unscaled_gradients(self.optimizer, gradients)  # the second

        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradients))
        gradients = [g * ops.minimum(1.0, LARGEST_NORM / norm) for g in gradients]
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, measured = self._measure(measured, loss, y, y_pred, weight)
        return logs, (trainable, non_trainable, optimizer, measured)

    def _measure(self, values: Any, loss: Any, y: Any, y_pred: Any, weight: Any) -> Any:
        """Logs and new metric variables after one more batch."""
        logs: dict[str, Any] = {}
        updated: list[Any] = []
        for metric in self.metrics:
            mine = values[len(updated) : len(updated) + len(metric.variables)]
            if metric.name == "loss":
                mine = metric.stateless_update_state(mine, loss, sample_weight=y.shape[0])
            else:
                mine = metric.stateless_update_state(mine, y, y_pred, sample_weight=weight)
            result = metric.stateless_result(mine)
            logs |= result if isinstance(result, dict) else {metric.name: result}
            updated += mine
        return logs, updated


def build(features: int, optimizer: Any, kind: type[keras.Model] = Clipped) -> keras.Model:
    """Make the features-64-10 network; its output layer stays in float32 under every policy."""
    x = keras.Input((features,))
    hidden = layers.Dense(64, activation="relu")(x)
    model = kind(x, layers.Dense(10, dtype="float32")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train on digits and print how the loss scale fared."""
    parser = argparse.ArgumentParser(description="A custom train_step in mixed precision, on digits.")
    parser.add_argument("--rows", type=int, default=4000, help="training rows (default 4000, all there are)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default 3)")
    parser.add_argument("--policy", default="mixed_float16", help="a Keras dtype policy (mixed_float16)")
    args = parser.parse_args()
    data = digits.load().flat().head(args.rows)

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(args.policy)
    strategy = phalanx.MirroredStrategy()
    print("Replicas:", strategy.num_replicas_in_sync)
    with strategy.scope():
        model = build(data.x_train.shape[1], keras.optimizers.SGD(0.2, momentum=0.9))
    history = model.fit(data.x_train, data.y_train, batch_size=64, epochs=args.epochs, verbose=2).history
    if "loss_scale" in history:
        print(f"Loss scale {history['loss_scale'][-1]:g}, steps skipped {sum(history['skipped_steps']):g}")
    _, accuracy = model.evaluate(data.x_test, data.y_test, verbose=0)
    print(f"Test accuracy: {accuracy:.2%}")


if __name__ == "__main__":
    main()
