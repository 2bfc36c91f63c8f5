"""The same networks in tf_keras, trained by `fit` under `tf.distribute.MultiWorkerMirroredStrategy`.

Tuned as its users do: each worker's pipeline cuts its own rows out of tensors in memory, a batch at a time,
and one call of the compiled function runs several steps, which halves the time of a step here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras as keras
from peer import Peer, leave
from tf_keras import layers


def mlp() -> keras.Model:
    """784-100-10."""
    return keras.Sequential(
        [keras.Input((784,)), layers.Dense(100, activation="relu"), layers.Dense(10, activation="softmax")]
    )


def transformer() -> keras.Model:
    """Two blocks of width 64 over 32 tokens, as in `models.py`."""
    tokens = keras.Input((32,), dtype="int32")
    flow = layers.Embedding(1000, 64)(tokens) + layers.Embedding(32, 64)(tf.range(32)[tf.newaxis])
    for _ in range(2):
        seen = layers.LayerNormalization()(flow)
        flow = flow + layers.MultiHeadAttention(4, 16, dropout=0.1)(seen, seen)
        seen = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(flow))
        flow = flow + layers.Dropout(0.1)(layers.Dense(64)(seen))
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(flow))
    return keras.Model(tokens, layers.Dense(10, activation="softmax")(pooled))


def main() -> None:
    """Train when told."""
    peer = Peer(["tensorflow", "tf_keras"])
    here, task = peer.place, peer.task
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x, y = task.rows()
    own = len(x) // here.workers

    def pipeline(_: Any) -> tf.data.Dataset:
        mine = slice(here.worker * own, (here.worker + 1) * own)
        own_x, own_y = tf.constant(x[mine]), tf.constant(y[mine])
        rows = tf.data.Dataset.range(own).shuffle(own).batch(task.batch // here.workers, drop_remainder=True)
        cut = rows.map(lambda index: (tf.gather(own_x, index), tf.gather(own_y, index)))
        return cut.repeat().prefetch(2)

    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = {"mlp": mlp, "transformer": transformer}[peer.options.model]()
        model.compile(
            keras.optimizers.Adam(1e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=20,
        )
    rows = strategy.distribute_datasets_from_function(pipeline)

    def train(epochs: int) -> dict[str, float]:
        history = model.fit(rows, epochs=epochs, steps_per_epoch=task.steps, verbose=0).history
        return {name: values[-1] for name, values in history.items()}

    peer.run(train)
    leave()


main()
