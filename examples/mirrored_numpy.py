"""The same one-line move as mirrored_tf_data.py, for data in NumPy arrays and no TensorFlow installed.

    phalanx run --replicas 2 examples/mirrored_numpy.py

`Stream` stands for `shuffle().batch(GLOBAL).repeat()`: full global batches without end, a new order on each
pass. Everything under the strategy's line is ordinary Keras.
"""

import argparse

import numpy as np

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import digits
import keras


class Stream(keras.utils.PyDataset):
    """Endless shuffled batches over arrays, handed out in epochs of `steps` batches."""

    def __init__(self, x: np.ndarray, y: np.ndarray, batch: int, steps: int, seed: int = 0) -> None:
        """Keep x (rows, features) and y (rows,); an epoch is `steps` batches of `batch` rows."""
        super().__init__()
        self.x, self.y, self.batch, self.steps, self.seed = x, y, batch, steps, seed
        self.epoch = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.steps

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Batch number `step` of this epoch: x (batch, features) and y (batch,)."""
        first = (self.epoch * self.steps + step) * self.batch
        positions = np.arange(first, first + self.batch)
        passes, within = positions // len(self.x), positions % len(self.x)
        rows = np.empty_like(positions)
        for number in np.unique(passes):
            order = np.random.default_rng((self.seed, number)).permutation(len(self.x))
            rows[passes == number] = order[within[passes == number]]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self) -> None:
        """Go on in the stream where the finished epoch stopped."""
        self.epoch += 1


parser = argparse.ArgumentParser(description="784-100-10 network on digits, fed by NumPy.")
parser.add_argument("--rows", type=int, default=4000, help="training rows (default 4000, all there are)")
parser.add_argument("--steps", type=int, default=100, help="steps per epoch (default 100)")
parser.add_argument("--epochs", type=int, default=3, help="epochs (default 3)")
args = parser.parse_args()
data = digits.load().flat().head(args.rows)

strategy = phalanx.MirroredStrategy()  # was: tf.distribute.MirroredStrategy()
print("Replicas:", strategy.num_replicas_in_sync)

BATCH_PER_REPLICA = 64
GLOBAL = BATCH_PER_REPLICA * strategy.num_replicas_in_sync

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input(data.x_train.shape[1:]),
            keras.layers.Dense(100, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

stream = Stream(data.x_train, data.y_train, GLOBAL, args.steps)
model.fit(stream, epochs=args.epochs, steps_per_epoch=args.steps)
loss, accuracy = model.evaluate(data.x_test, data.y_test, batch_size=GLOBAL, verbose=0)
print(f"Test accuracy: {accuracy:.2%} on {len(data.x_test)} rows")
