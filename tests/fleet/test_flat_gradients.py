"""Gradients that cross processes travel as one buffer where that keeps the one-device numbers."""

import pytest

from tests.fleet.workers import assert_close, run

TRAIN = """
def build():
    keras.utils.set_random_seed(0)
    # The bias of attention keys has no gradient but rounding, which Adam enlarges (docs/views.md).
    inputs = x = keras.Input((4, 2))
    x = keras.layers.Dense(6, kernel_regularizer=keras.regularizers.L2(1e-2))(x)
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 3, use_bias=False)(x, x)])
    x = keras.layers.Flatten()(keras.layers.LayerNormalization()(x))
    fixed = keras.layers.Dense(6, trainable=False)(x)
    outputs = [keras.layers.Dense(1, name="a")(fixed), keras.layers.Dense(3, activation="softmax", name="b")(x)]
    model = keras.Model(inputs, outputs, name="net")
    model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=0.3), ["mse", "sparse_categorical_crossentropy"],
        loss_weights=[1.0, 0.5], metrics=[["mae"], ["accuracy"]], weighted_metrics=[["mse"], []])
    return model

def train(scope):
    with scope():
        model = build()
    x, labels = X.reshape(70, 4, 2), (X[:, 0] > 0) + (X[:, 1] > 0).astype("int32")
    weights = np.linspace(0.5, 1.5, 65)
    history = model.fit(x[:65], [Y[:65], labels[:65]], sample_weight=[weights, weights], batch_size=32, epochs=3, verbose=0).history
    values = {f"history/{name}": each for name, each in history.items()}
    values |= {f"weight {i}": w.tolist() for i, w in enumerate(model.get_weights())}
    return model, values | {f"slot {i}": np.asarray(v.value).tolist() for i, v in enumerate(model.optimizer.variables)}
"""
ALONE = TRAIN + 'print("result", json.dumps(train(phalanx.OneDeviceStrategy("cpu:0").scope)[1]))\n'
WORK = (
    TRAIN
    + """
import re
import jax
from phalanx.training import execute, home

strategy = cluster()
model, values = train(strategy.scope)
place = strategy.placement
state = tuple([jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=place.whole) for v in part] for part in (
    model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables))
column = lambda *shape, dtype="float32": jax.ShapeDtypeStruct(shape, dtype, sharding=place.rows)
batch = (column(36, 4, 2), (column(36, 1), column(36, dtype="int32")), (column(36), column(36)))
step = home.compiled(model, home.home_of(model), "train", execute.TRAIN)
program = step.lower(state, batch, None).compile().as_text()
buffers = [[int(np.prod([int(d) for d in dims.split(",") if d])) for dims in re.findall(r"\\[([\\d,]*)\\]", found)]
    for found in re.findall(r"= (.+?) all-reduce(?:-start)?\\(", program)]
trained = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
print("result", json.dumps([values, str(strategy.report()), buffers, trained]))
"""
)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return run(ALONE, tmp_path_factory.mktemp("one"), count=1)[0][0]


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (3, 2)])
def test_one_flat_buffer_gives_the_one_device_result(workers, replicas, one_device, tmp_path):
    """Remainders of one row, weights of rows, two losses, a regulariser, a frozen layer, clipping and Adam."""
    found = run(WORK, tmp_path, count=workers, replicas=replicas)
    values, report, buffers, trained = found[0][0]
    assert_close(values, one_device)
    for index in range(1, workers):
        assert found[index][0][0] == values, f"worker {index} differs from the chief"
    assert "gradients of net" in report and "one flat buffer: every layer" in report
    every = sorted(size for each in buffers for size in each)
    assert len(buffers) == 1 and every[-1] >= trained, buffers
    assert sum(every[:-1]) < 10, buffers  # the rest is a few sums of metrics, in the same all-reduce


DROPS = """
def train(scope):
    keras.utils.set_random_seed(0)
    with scope():
        inputs = x = keras.Input((4, 2))
        x = x + keras.layers.MultiHeadAttention(1, 2, use_bias=False, dropout=0.2)(x, x)
        x = keras.layers.Flatten()(keras.layers.Dropout(0.3)(x))
        model = keras.Model(inputs, keras.layers.Dense(1)(x), name="net")
        model.compile("sgd", "mse")
    history = model.fit(X.reshape(70, 4, 2)[:65], Y[:65], batch_size=32, epochs=2, verbose=0).history
    values = {f"weight {i}": w.tolist() for i, w in enumerate(model.get_weights())}
    return values | history | {f"seed {i}": np.asarray(v).tolist() for i, v in enumerate(model.non_trainable_variables)}
"""


def test_dropout_has_the_masks_of_one_device(tmp_path):
    """Attention's and a layer's own; a remainder of one row leaves the second worker nothing to draw for."""
    alone = DROPS + 'print("result", json.dumps([train(phalanx.OneDeviceStrategy("cpu:0").scope), ""]))\n'
    ours = DROPS + 's = cluster()\nprint("result", json.dumps([train(s.scope), str(s.report())]))\n'
    ((wanted, _),) = run(alone, tmp_path, count=1)[0]
    found = run(ours, tmp_path)
    values, report = found[0][0]
    assert "one flat buffer: every layer" in report
    assert_close(values, wanted)
    assert found[1][0][0] == values
