"""A tf.distribute script with a tf.data pipeline, moved to Keras 3 on JAX by changing one line.

    phalanx run --replicas 2 examples/mirrored_tf_data.py

The changed line is the strategy's; the rest is what stood there before. Needs `pip install tensorflow-cpu`,
which reads the data and no more: the training runs on JAX. Without TensorFlow see mirrored_numpy.py.
"""

import argparse

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import digits
import keras
import tensorflow as tf

parser = argparse.ArgumentParser(description="784-100-10 network on digits, fed by tf.data.")
parser.add_argument("--rows", type=int, default=4000, help="training rows (default 4000, all there are)")
parser.add_argument("--steps", type=int, default=100, help="steps per epoch (default 100)")
parser.add_argument("--epochs", type=int, default=3, help="epochs (default 3)")
args = parser.parse_args()
data = digits.load().flat().head(args.rows)

strategy = phalanx.MirroredStrategy()  # was: tf.distribute.MirroredStrategy()
print("Replicas:", strategy.num_replicas_in_sync)

BATCH_PER_REPLICA = 64
GLOBAL = BATCH_PER_REPLICA * strategy.num_replicas_in_sync

dataset = tf.data.Dataset.from_tensor_slices((data.x_train, data.y_train))
dataset = dataset.shuffle(10000).batch(GLOBAL).repeat()
test_dataset = tf.data.Dataset.from_tensor_slices((data.x_test, data.y_test)).batch(GLOBAL)

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

model.fit(dataset, epochs=args.epochs, steps_per_epoch=args.steps)
loss, accuracy = model.evaluate(test_dataset, verbose=0)
print(f"Test accuracy: {accuracy:.2%} on {len(data.x_test)} rows")
