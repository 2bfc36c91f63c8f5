"""Two and three processes train to the one-device result; the proof is equal weights."""

import pytest

from tests.fleet.workers import assert_close, run

MODEL = """
def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5),
        "binary_crossentropy",
        metrics=["mae", "mse"],  # AUC jumps where rounding moves a row over one of its thresholds
    )
    return model

def train(model):
    history = model.fit(X, Y, batch_size=32, epochs=3, validation_data=(X[:37], Y[:37]), verbose=0).history
    values = {f"history/{name}": each for name, each in history.items()}
    values["evaluate"] = model.evaluate(X, Y, batch_size=9, verbose=0)
    values["predict"] = model.predict(X[:67], batch_size=11, verbose=0).tolist()
    values |= {f"weight {i}": w.tolist() for i, w in enumerate(model.get_weights())}
    values |= {f"slot {i}": np.asarray(v.value).tolist() for i, v in enumerate(model.optimizer.variables)}
    return values
"""

WORK = (
    MODEL
    + """
strategy = cluster()
with strategy.scope():
    model = build()
print("result", json.dumps(train(model)))
"""
)


ALONE = (
    MODEL
    + """
with phalanx.OneDeviceStrategy("cpu:0").scope():
    model = build()
print("result", json.dumps(train(model)))
"""
)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return run(ALONE, tmp_path_factory.mktemp("one"), count=1)[0][0]


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (2, 2), (3, 1)])
def test_workers_equal_one_device_with_shuffling_batch_norm_dropout_and_remainders(
    workers, replicas, one_device, tmp_path
):
    """1e-5: only the order of float32 additions differs, over nine steps."""
    found = run(WORK, tmp_path, count=workers, replicas=replicas)
    (chief,) = found[0]
    assert_close(chief, one_device)
    for index in range(1, workers):
        assert found[index] == [chief], f"worker {index} differs from the chief"


def test_one_worker_is_no_special_mode(one_device, tmp_path):
    assert_close(run(WORK, tmp_path, count=1)[0][0], one_device)
