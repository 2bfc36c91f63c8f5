"""CPU replicas never deadlock: thousands of tiny steps, more replicas than cores, other programs at work."""

import os
import subprocess
import sys
import time

import pytest

PINNED = """
import faulthandler, os, sys
faulthandler.dump_traceback_later({limit}, exit=True)
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import phalanx
strategy = phalanx.MirroredStrategy(devices=[f"cpu:{{i}}" for i in range({replicas})])
import keras, numpy as np
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
assert strategy.num_replicas_in_sync == {replicas}
"""

TRAIN = """
x = np.random.default_rng(0).normal(size=({steps} * 8, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
history = model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
assert int(model.optimizer.iterations) == {steps}, int(model.optimizer.iterations)
assert history.history["loss"][0] < 1.0, history.history
for variable in model.trainable_variables:
    copies = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
    assert len(copies) == {replicas} and all(np.array_equal(copies[0], copy) for copy in copies)
print("finished")
"""

LOOK = """
x = np.random.default_rng(0).normal(size=({steps} * 8, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
out = model.predict(x, batch_size=8, verbose=0)
assert out.shape == ({steps} * 8, 1)
loss = model.evaluate(x, y, batch_size=8, verbose=0)
assert abs(loss - np.mean((out - y) ** 2)) < 1e-4 * loss
print("finished")
"""


LIVE = """
x = np.random.default_rng(0).normal(size=({steps} // 10 * 7, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.predict(x[:70], batch_size=7, verbose=0))
model.fit(x, y, batch_size=7, epochs=10, verbose=0, validation_data=(x[:210], y[:210]), callbacks=[look])
assert int(model.optimizer.iterations) == {steps}, int(model.optimizer.iterations)
print("finished")
"""


def soak(body, *, replicas, steps, limit, **environ):
    """Run a script in a process of its own, as a user without any preparation would."""
    script = (PINNED + body).format(replicas=replicas, steps=steps, limit=limit)
    ours = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC", "KERAS_BACKEND")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean | {"JAX_PLATFORMS": "cpu"} | environ,
        capture_output=True,
        text=True,
        timeout=limit + 60,
    )
    assert done.returncode == 0, (
        f"after {time.monotonic() - started:.0f} s\n{done.stdout}\n{done.stderr[-4000:]}"
    )
    assert done.stdout.strip().endswith("finished")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("replicas", [2, 8])
def test_five_thousand_training_steps_on_two_cores_reach_their_end(replicas):
    soak(TRAIN, replicas=replicas, steps=5000, limit=220)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("replicas", [2, 8])
def test_two_thousand_steps_of_predict_and_evaluate_on_two_cores_reach_their_end(replicas):
    soak(LOOK, replicas=replicas, steps=2000, limit=220)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("replicas", [2, 8])
def test_replicas_that_the_user_made_without_a_larger_pool_reach_their_end(replicas):
    """Uneven batches with validation and predictions between; JAX's pool is as small as it comes."""
    flag = f"--xla_force_host_platform_device_count={replicas}"
    soak(LIVE, replicas=replicas, steps=1000, limit=220, XLA_FLAGS=flag)
