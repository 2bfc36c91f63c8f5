"""What several workers agree on: values, random numbers, stops, rates, files, and who is where."""

import time

import pytest

from tests.fleet.workers import Fleet, run, tf_config

SMALL = """
strategy = cluster()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
chief = strategy.is_chief
"""


def test_different_seeds_are_repaired_with_the_chiefs_values_and_one_warning(tmp_path):
    """Reports, row 44; also the chief's shuffling."""
    script = (
        "keras.utils.set_random_seed(int(os.environ['WORKER']))\n"
        + SMALL
        + """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", phalanx.PhalanxWarning)
    before = [w.tolist() for w in model.get_weights()]
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
texts = [str(w.message) for w in caught if issubclass(w.category, phalanx.PhalanxWarning)]
print("result", json.dumps([before, [w.tolist() for w in model.get_weights()], texts]))
"""
    )
    found = run(script, tmp_path)
    (before, after, texts), (other_before, other_after, other_texts) = found[0][0], found[1][0]
    assert before != other_before
    assert after == other_after
    assert len(texts) == 1 and "chief's values" in texts[0] and "workers 1" in texts[0]
    assert other_texts == []


def test_a_stop_and_a_rate_on_one_worker_are_everybodys(tmp_path):
    """Reports, row 18."""
    script = (
        SMALL
        + """
class Mine(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.01 * (1 + strategy.worker_index) / (epoch + 1)
        if epoch == 1 and not chief:
            self.model.stop_training = True
rates = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(float(model.optimizer.learning_rate)))
seen = []
history = model.fit(X, Y, batch_size=16, epochs=4, verbose=0, callbacks=[Mine(), rates])
print("result", json.dumps([history.epoch, seen, float(model.optimizer.learning_rate)]))
"""
    )
    found = run(script, tmp_path)
    assert found[0] == found[1]
    epochs, seen, last = found[0][0]
    assert epochs == [0, 1]
    assert seen == pytest.approx([0.05, 0.01])
    assert last == pytest.approx(0.005)


def test_files_are_written_once_and_one_bar_is_drawn(tmp_path):
    """Reports, rows 9 and 35; row 41: the chief evaluates alone what it has loaded outside a scope."""
    script = (
        SMALL
        + """
import pathlib
everywhere = keras.callbacks.CSVLogger(f"log{strategy.worker_index}.csv")
everywhere.all_workers = True
model.fit(X, Y, batch_size=16, epochs=3, callbacks=[
    keras.callbacks.CSVLogger("log.csv"), everywhere, keras.callbacks.ModelCheckpoint("e{epoch}.keras")])
results = model.evaluate(X, Y, verbose=0)
if chief:  # a model without a strategy needs no other worker
    alone = keras.models.load_model("e3.keras")
    assert abs(alone.evaluate(X, Y, verbose=0) - results) < 1e-5
saved = alone.get_weights() if chief else []
print("result", json.dumps([[w.tolist() for w in part] for part in (model.get_weights(), saved)]))
"""
    )
    with Fleet(script, tmp_path) as fleet:
        ended = fleet.wait()
    assert [each.code for each in ended.values()] == [0, 0], [each.err for each in ended.values()]
    assert ended[0].out.count("Epoch 3/3") == 1 and "Epoch" not in ended[1].out
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    assert len((tmp_path / "log1.csv").read_text().splitlines()) == 4
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == ["e1.keras", "e2.keras", "e3.keras"]
    live, saved = ended[0].results[0]
    assert saved == live


def test_chief_first_gather_broadcast_and_barrier(tmp_path):
    """Reports, row 56: four workers, and a chief that fails on all of them; small host values."""
    script = """
strategy = cluster()
with strategy.chief_first():
    if not os.path.exists("data"):
        open("count", "a").write("x")
        open("data", "wb").write(b"y" * 5_000_000)
size = os.path.getsize("data")
strategy.barrier("here")
said = [size, strategy.gather({"i": strategy.worker_index}), strategy.broadcast(strategy.worker_index)]
try:
    with strategy.chief_first():
        open("tried", "a").write("x")
        raise OSError("the disk is full")
except (OSError, phalanx.WorkerLost) as error:
    print("result", json.dumps([said, type(error).__name__, str(error)]))
"""
    found = run(script, tmp_path, count=4)
    every = [results[0] for _, results in sorted(found.items())]
    assert [said for said, *_ in every] == [[5_000_000, [{"i": 0}, {"i": 1}, {"i": 2}, {"i": 3}], 0]] * 4
    assert (tmp_path / "count").read_text() == (tmp_path / "tried").read_text() == "x"
    assert [kind for _, kind, _ in every] == ["OSError", "WorkerLost", "WorkerLost", "WorkerLost"]
    assert all("worker 0: OSError: the disk is full" in text for *_, text in every[1:])


def test_a_method_called_on_one_worker_alone_is_named(tmp_path):
    """Reports, row 41: `if chief: evaluate`."""
    script = (
        SMALL
        + """
if chief:
    model.evaluate(X, Y, verbose=0)
model.fit(X, Y, verbose=0)
"""
    )
    with Fleet(script, tmp_path) as fleet:
        ended = fleet.wait()
    assert ended[0].code == 76 and ended[1].code == 76
    assert "WorkerLost" in ended[0].err
    assert "the start of evaluate" in ended[0].err and "the start of fit" in ended[0].err


def test_different_models_and_different_data_are_refused_before_a_step(tmp_path):
    script = """
strategy = cluster()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4 + strategy.worker_index), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    model.fit(X, Y, verbose=0)
except phalanx.ScopeError as error:
    print("result", json.dumps(str(error)))
with strategy.scope():
    same = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    same.compile("sgd", "mse")
for rows in (64 + 32 * strategy.worker_index, 33 + strategy.worker_index):
    try:
        same.fit(np.tile(X, (2, 1))[:rows], np.tile(Y, (2, 1))[:rows], batch_size=32, verbose=0)
    except phalanx.ScopeError as error:
        print("result", json.dumps(str(error)))
"""
    found = run(script, tmp_path)
    for results in found.values():
        assert "worker 1 has" in results[0] and "(8, 5)" in results[0] and "(8, 4)" in results[0]
        assert "worker 0 has 2 batches, 64 rows; worker 1 has 3 batches, 96 rows" in results[1]
        assert "worker 0 has 33 rows; worker 1 has 34 rows" in results[2], "as many batches, other rows"


def test_the_replica_view_a_second_strategy_and_an_eager_model(tmp_path):
    script = """
first = cluster()
second = cluster(view="replica")
with second.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
model.fit(X, Y, batch_size=32, epochs=2, verbose=0)
with first.scope():
    eager = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    eager.compile("sgd", "mse", run_eagerly=True)
try:
    eager.fit(X, Y, verbose=0)
except phalanx.UnsupportedError as error:
    refused = str(error)
print("result", json.dumps([[w.tolist() for w in model.get_weights()], refused]))
"""
    found = run(script, tmp_path)
    assert found[0] == found[1]
    assert "run_eagerly" in found[0][0][1]


def test_a_missing_worker_is_named_within_the_connect_timeout(tmp_path):
    """Reports, row 4."""
    started = time.monotonic()
    with Fleet("cluster(connect_timeout=5)", tmp_path, only=[0]) as fleet:
        ended = fleet.wait(60)
    assert ended[0].code == 1
    assert f"worker 1 (127.0.0.1:{fleet.ports[1]}) never connected in 5 s" in ended[0].err
    assert time.monotonic() - started < 45


def test_a_missing_chief_is_named(tmp_path):
    with Fleet("cluster(connect_timeout=3)", tmp_path, only=[1]) as fleet:
        ended = fleet.wait(60)
    assert ended[1].code == 1
    assert f"worker 0 (127.0.0.1:{fleet.ports[0]}) never answered worker 1" in ended[1].err


def test_two_workers_of_one_index_are_told_so(tmp_path):
    """Reports, row 34."""
    ports = [0, 0]
    from tests.fleet.workers import free_ports

    ports = free_ports(3)
    configs = {0: tf_config(ports, 0), 1: tf_config(ports, 1), 2: tf_config(ports, 1)}
    with Fleet("cluster(connect_timeout=20)", tmp_path, count=3, configs=configs) as fleet:
        ended = fleet.wait(60)
    assert {each.code for each in ended.values()} == {1}
    assert any("two processes say that they are worker 1" in each.err for each in ended.values())


def test_jax_in_use_already_is_an_error_and_never_one_worker(tmp_path):
    """Reports, row 10."""
    script = """
keras.ops.ones(2)
try:
    cluster(connect_timeout=20)
except RuntimeError as error:
    print("result", json.dumps(str(error)))
    os._exit(0)
"""
    found = run(script, tmp_path)
    assert "JAX is already in use" in found[0][0] and "first line after the imports" in found[0][0]
