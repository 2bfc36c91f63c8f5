"""Each worker reads only its rows where the data can be indexed; the proof is equal weights and counted reads."""

import pytest

from tests.fleet.workers import assert_close, run

DATA = """
class Counted(np.ndarray):
    '''Rows that are noted as they are read.'''
    seen = None

    def __array_finalize__(self, other):
        self.seen = getattr(other, "seen", None)

    def __getitem__(self, rows):
        found = super().__getitem__(rows)
        if self.seen is not None and isinstance(found, np.ndarray):
            self.seen.append(np.arange(len(self))[rows].tolist())
            return found.view(np.ndarray)
        return found

def counted(array):
    array = array.view(Counted)
    array.seen = []
    return array

class GrainRows:
    def __init__(self, *columns):
        self.columns, self.seen = columns, []

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, row):
        self.seen.append(int(row))
        return tuple(column[row] for column in self.columns)

def build(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], weighted_metrics=["mse"])
    return model

def outcome(model, history):
    values = {f"history/{name}": each for name, each in history.history.items()}
    return values | {f"weight {i}": w.tolist() for i, w in enumerate(model.get_weights())}

def train(scope):
    import grain
    W = np.linspace(0.5, 1.5, 70).astype("float32")
    x, found = counted(X), {}
    with scope():
        model = build()
    found["weights"] = outcome(model, model.fit(x, Y, batch_size=32, epochs=3, sample_weight=W, verbose=0,
        validation_data=(X[:37], Y[:37], W[:37])))
    read = x.seen
    with scope():
        model = build()
    found["classes"] = outcome(model, model.fit(X[:65], Y[:65], batch_size=32, epochs=2, shuffle=False, verbose=0,
        class_weight={0: 1.0, 1: 3.0}))
    rows = GrainRows(X[:65], Y[:65])
    with scope():
        model = build()
    data = grain.MapDataset.source(rows).shuffle(seed=3).map(lambda row: row).batch(32)
    found["grain"] = outcome(model, model.fit(data, epochs=2, verbose=0))
    iterated = grain.MapDataset.source(GrainRows(X, Y)).to_iter_dataset().batch(32)
    found["grain evaluate"] = {"values": model.evaluate(iterated, verbose=0)}
    found["grain predict"] = {"values": model.predict(grain.MapDataset.source(GrainRows(X)).batch(9), verbose=0).tolist()}
    return found, read, rows.seen
"""

WORK = (
    DATA
    + """
strategy = cluster()
found, read, rows = train(strategy.scope)
policies = {name: [each.policy, each.reason] for name, each in strategy.sharding.items()}
print("result", json.dumps([found, read, rows, policies]))
"""
)
ALONE = DATA + 'print("result", json.dumps(train(phalanx.OneDeviceStrategy("cpu:0").scope)))\n'


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return run(ALONE, tmp_path_factory.mktemp("one"), count=1)[0][0]


@pytest.mark.parametrize("workers", [2, 3])
def test_each_worker_reads_its_rows_only_and_all_equal_one_device(workers, one_device, tmp_path):
    """Reports, row 45 (arrays): shuffled, weighted, with remainders and validation data; grain by its map form."""
    found = run(WORK, tmp_path, count=workers)
    values, read, rows, policies = found[0][0]
    for name, wanted in one_device[0].items():
        assert_close(values[name], wanted)
    for index in range(1, workers):
        assert found[index][0][0] == values, f"worker {index} differs from the chief"
    assert policies["training data"][0] == "data" and "only its own" in policies["training data"][1]

    # Each epoch of 70 rows in batches of 32, 32 and 6: every row by one worker, nobody more than its share.
    looks = [found[i][0][1][0] for i in range(workers)]
    assert all(len(look) == 1 for look in looks), "one row is looked at for its shape"
    ours = [[row for part in found[i][0][1][1:] for row in part] for i in range(workers)]
    assert sorted(row for each in ours for row in each) == sorted(list(range(70)) * 3)
    assert max(map(len, ours)) == 3 * sum(-(-n // workers) for n in (32, 32, 6))

    # grain: 65 rows in batches of 32, 32 and 1 in two epochs; one row more is looked at for its shape where there is none.
    grained = [found[i][0][2] for i in range(workers)]
    assert set(sum(grained, [])) == set(range(65))
    assert max(map(len, grained)) <= 2 * (2 * -(-32 // workers) + 1) + 1
