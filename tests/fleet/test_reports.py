"""What users reported of two workers, each report with its right value; one run of two workers with two replicas."""

import pytest

from tests.fleet.workers import assert_close, run

CASES_HERE = ["own train_step", "SGD with clipnorm"]
RUN = (
    f"CASES_HERE = {CASES_HERE}"
    + """
import warnings
from tests.rooms.cases import CASES, train
from tests.fleet.reported import SCORED, Batches, errors_of, counting, endless, half, scores, tutorial

class Tell(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rows = []
    def on_predict_batch_end(self, batch, logs=None):
        self.rows.append([np.asarray(logs["outputs"])[:, 0].tolist(), [str(each) for each in logs["id"]]])

def said(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error)

def everything(scope, strategy):
    found = {}
    with scope():
        model = counting()
    results = model.evaluate(*errors_of(9), batch_size=5, verbose=0, return_dict=True)
    many = model.evaluate(*errors_of(10_000), batch_size=96, verbose=0, return_dict=True)
    found["seven"] = {"mae": results["mae"], "many": many["mae"], "rows": float(model.layers[0].seen.value)}

    x, y = errors_of(70)
    kept = {}
    for name, data, options in (("a", (x, y), {"batch_size": 32}), ("b", (Batches(x, y, 32),), {"steps_per_epoch": 5}),
            ("c", (endless(x, y, 32),), {"steps_per_epoch": 2})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = model.fit(*data, epochs=3, shuffle=False, verbose=0, **options)
        ours = [each for each in caught if issubclass(each.category, phalanx.PhalanxWarning)]
        kept[name] = [int(model.optimizer.iterations.value), len(history.epoch), len(ours)]
    found["eight"] = kept
    passing = model

    with scope():
        model = tutorial()
    history = model.fit(endless(*TUTORIAL, 64), epochs=3, steps_per_epoch=4, verbose=0)
    found["nineteen"] = {**history.history, "weights": [float(np.abs(w).sum()) for w in model.get_weights()]}

    with scope():
        model = scores()
    found["twenty-six"] = model.evaluate(*SCORED, batch_size=8, verbose=0, return_dict=True)

    for name in CASES_HERE:
        with scope():
            found[name] = {key: value.tolist() for key, value in train(CASES[name]).items()}
    with scope():
        model = half()
    history = model.fit(*OVERFLOW, batch_size=32, shuffle=False, verbose=0)
    found["twenty-three"] = {"history": history.history, "scale": float(model.optimizer.dynamic_scale.value),
        "steps": int(model.optimizer.inner_optimizer.iterations.value), "finite": bool(np.isfinite(model.get_weights()[0]).all())}
    return passing, model, found

TUTORIAL = np.random.default_rng(1).uniform(size=(280, 28, 28, 1)).astype("float32"), np.arange(280) % 10
OVERFLOW = np.random.default_rng(2).normal(size=(128, 8)).astype("float32"), np.ones((128, 1), "float32")
OVERFLOW[0][48] = 1e5  # row 16 of the second batch of 32: of four replicas the third has it
IDS = np.array([f"row {i}" for i in range(70)])
"""
)
ALONE = (
    RUN
    + """
_, _, found = everything(phalanx.OneDeviceStrategy("cpu:0").scope, None)
print("result", json.dumps(found, default=lambda value: np.asarray(value).tolist()))
"""
)
WORK = (
    RUN
    + """
strategy = cluster()
passing, model, found = everything(strategy.scope, strategy)
found["report"] = str(strategy.report())
found["describe"] = str(strategy.describe(global_batch=32))
if strategy.is_chief:
    model.save("half.keras")
strategy.barrier("saved")
loaded = keras.models.load_model("half.keras")
found["loaded"] = [float(loaded.optimizer.dynamic_scale.value), [w.tolist() for w in loaded.get_weights()] ==
    [w.tolist() for w in model.get_weights()]]

model = passing
x = np.arange(127, dtype="float32")[:, None]
part = model.predict(x, batch_size=32, verbose=0, gather=False)
found["fifty-two"] = {"all": model.predict(x, batch_size=32, verbose=0)[:, 0].tolist(), "part": part[:, 0].tolist(),
    "own": strategy.own_rows(127, batch_size=32).tolist(), "few": len(model.predict(x[:1], verbose=0, gather=False))}
before = int(model.optimizer.iterations.value)
model.fit(np.ones((128, 1)), np.ones((128, 1)), batch_size=32, verbose=0)
found["sixteen"] = int(model.optimizer.iterations.value) - before

x = {"x": x[:70], "id": IDS}
def with_ids():
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs["x"]))
    model.compile("sgd", "mse")
    return model
with strategy.scope():
    model = with_ids()
found["strings"] = said(lambda: model.fit(x, x["x"], batch_size=32, verbose=0))
found["ragged"] = said(lambda: model.fit([[1.0], [1.0, 2.0]], np.ones((2, 1)), verbose=0))
ids = cluster(host_only=["id"])
with ids.scope():
    model = with_ids()
model.fit(x, x["x"], batch_size=32, verbose=0)
whole, own = Tell(), Tell()
for gather, tell in ((True, whole), (False, own)):
    model.predict(x, batch_size=32, verbose=0, gather=gather, callbacks=[tell])
def mine(context):
    part = slice(35 * context.input_pipeline_id, 35 * (context.input_pipeline_id + 1))
    yield ({"x": x["x"][part], "id": IDS[part]},)
found["gathered"] = said(lambda: model.predict(ids.distribute_datasets_from_function(mine), verbose=0))
pipeline = Tell()
model.predict(ids.distribute_datasets_from_function(mine), verbose=0, gather=False, callbacks=[pipeline])
found["pipeline"] = pipeline.rows
found["aligned"] = [whole.rows, own.rows, model.predict({"x": x["x"]}, verbose=0)[:, 0].tolist()]
print("result", json.dumps(found, default=lambda value: np.asarray(value).tolist()))
"""
)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return run(ALONE, tmp_path_factory.mktemp("one"), 280, count=1)[0][0]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    found = run(WORK, tmp_path_factory.mktemp("both"), 280, replicas=2)
    return [found[0][0], found[1][0]]


def test_every_row_is_evaluated_once(both):
    """Reports, row 7: MAE of errors 0 to 8 in batches of 5, and 10,000 rows; a counter inside the model."""
    for each in both:
        assert each["seven"]["mae"] == 4.0
        assert each["seven"]["many"] == pytest.approx(4999.5, rel=1e-6)
        assert each["seven"]["rows"] == 9 + 10_000


def test_finite_and_endless_data_have_the_steps_of_one_device(both, one_device):
    """Reports, row 8: steps, epochs and warnings."""
    assert both[0]["eight"] == both[1]["eight"] == one_device["eight"]
    assert both[0]["eight"] == {"a": [9, 3, 0], "b": [18, 3, 1], "c": [24, 3, 0]}


def test_the_tutorials_network_trains_and_history_is_the_same_everywhere(both, one_device):
    """Reports, row 19; 12 steps of its 210."""
    assert both[0]["nineteen"] == both[1]["nineteen"]
    assert_close(both[0]["nineteen"], one_device["nineteen"])


def test_an_overflow_on_one_replica_skips_the_step_on_all_workers(both, one_device):
    """Reports, row 23: the third of four replicas; the scale is saved and loaded."""
    assert both[0]["twenty-three"] == both[1]["twenty-three"]
    for each in (*both, one_device):
        assert each["twenty-three"]["scale"] == 16384 and each["twenty-three"]["steps"] == 3
        assert each["twenty-three"]["finite"] and each["twenty-three"]["history"]["skipped_steps"] == [1]
    (loss,), (wanted,) = (each["twenty-three"]["history"]["loss"] for each in (both[0], one_device))
    assert loss == pytest.approx(wanted, abs=4 * 2.0**-10), "four eps of float16"
    assert both[0]["loaded"] == [16384, True]
    assert "one by one: dense_half computes in float16" in both[0]["report"]


def test_strings_are_named_and_stay_aligned_with_predictions(both):
    """Reports, row 25."""
    for worker, each in enumerate(both):
        assert each["strings"].startswith("ColumnError") and "x['id']" in each["strings"]
        assert "host_only=['id']" in each["strings"]
        assert each["ragged"].startswith("ColumnError")
        whole, own, values = each["aligned"]
        assert [name for _, names in whole for name in names] == [f"row {i}" for i in range(70)]
        assert [value for part, _ in whole for value in part] == pytest.approx(values, abs=1e-5)
        mine = {f"row {i}": value for i, value in enumerate(values)}
        assert all(part == pytest.approx([mine[name] for name in names], abs=1e-5) for part, names in own)
        assert [len(names) for _, names in own] == [16, 16, 4 if worker == 0 else 2]
        assert each["gathered"].startswith("UnsupportedError") and "gather=False" in each["gathered"]
        ((part, names),) = each["pipeline"]
        assert names == [f"row {i}" for i in range(35 * worker, 35 * (worker + 1))]
        assert part == pytest.approx([mine[name] for name in names], abs=1e-5)


def test_metrics_that_are_no_means_are_those_of_one_device(both, one_device):
    """Reports, row 26: 11/16 and not the mean of two halves."""
    assert both[0]["twenty-six"] == both[1]["twenty-six"]
    found = both[0]["twenty-six"]
    assert_close(found, one_device["twenty-six"], 1e-6)
    assert found["auc"] == pytest.approx(11 / 16, abs=1e-6) and found["fp"] == 1
    assert sum(found[name] for name in ("tp", "fp", "tn", "fn")) == 8


@pytest.mark.parametrize("name", CASES_HERE)
def test_custom_steps_clipping_and_the_like_equal_one_device(name, both, one_device):
    """Reports, rows 48 and 57."""
    assert both[0][name] == both[1][name]
    assert_close(both[0][name], one_device[name])


def test_batch_size_is_global_and_every_share_is_printed(both):
    """Reports, rows 16 and 46."""
    lines = [line.split() for line in both[0]["describe"].splitlines()]
    assert [line[-1] for line in lines if line[0] == "batch,"] == ["32", "16", "8"]
    assert both[0]["sixteen"] == 128 // 32
    rows = [int(line.split()[-1]) for line in both[0]["report"].splitlines()[1:5]]
    assert len(rows) == 4 and all(rows)


def test_predictions_are_whole_on_every_worker_or_each_workers_own(both):
    """Reports, row 52: 127 rows."""
    wanted = both[0]["fifty-two"]["all"]
    assert wanted == pytest.approx([float(i) for i in range(127)], abs=0.2), "trained a little before"
    for each in both:
        assert each["fifty-two"]["all"] == wanted
        assert each["fifty-two"]["part"] == [wanted[i] for i in each["fifty-two"]["own"]]
    assert sorted(both[0]["fifty-two"]["own"] + both[1]["fifty-two"]["own"]) == list(range(127))
    assert [each["fifty-two"]["few"] for each in both] == [1, 0]
