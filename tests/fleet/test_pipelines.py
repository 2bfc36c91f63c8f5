"""Each worker reads a pipeline of its own; all finish together, every row counts once, and equal one device."""

import pytest

from tests.fleet.workers import assert_close, run

DATA = """
X = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
PARTS = [(0, 64), (64, 160)]  # rows of worker 0 and of worker 1
EVEN = [(0, 60), (60, 160)]  # with a short last batch beside a full one

class Rows(keras.utils.PyDataset):
    '''Batches of given rows, noted as they are read.'''
    def __init__(self, batches):
        super().__init__()
        self.rows, self.seen = batches, []
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        self.seen.append(index)
        return X[self.rows[index]], Y[self.rows[index]]

def cut(part, size=16):
    return [np.arange(first, min(first + size, part[1])) for first in range(*part, size)]

def joined(parts):
    '''The global batches: those of both workers, one after the other, as long as any has one.'''
    import itertools
    return [np.concatenate(each) for each in itertools.zip_longest(*map(cut, parts), fillvalue=np.arange(0))]

def mixing():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model

def plain():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)], name="plain")
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model

def endless(batches):
    while True:
        for rows in batches:
            yield X[rows], Y[rows]

def outcome(model, history, data):
    values = {f"history/{name}": each for name, each in history.history.items()}
    values |= {f"weight {i}": w.tolist() for i, w in enumerate(model.get_weights())}
    return values | {"evaluate": model.evaluate(data, verbose=0), "steps": int(model.optimizer.iterations.value)}

def train(scope, source):
    found = {}
    with scope():
        model, flat, replica = mixing(), plain(), plain()
    history = model.fit(source(Rows, PARTS), epochs=2, shuffle=False, verbose=0, validation_data=source(Rows, EVEN))
    found["five"] = outcome(model, history, source(Rows, PARTS))
    found["predict"] = {"rows": model.predict(source(Rows, EVEN), verbose=0).tolist()}
    history = flat.fit(source(Rows, EVEN), epochs=2, shuffle=False, verbose=0, steps_per_epoch=7)
    found["flat"] = outcome(flat, history, source(Rows, EVEN))
    history = replica.fit(source(endless, PARTS), epochs=2, steps_per_epoch=5, verbose=0)
    found["endless"] = outcome(replica, history, source(Rows, PARTS))
    return model, found
"""

WORK = (
    DATA
    + """
strategy = cluster()
me = strategy.worker_index
made = []

def source(kind, parts):
    def make(context):
        assert context == phalanx.InputContext(2, me, 2) and context.get_per_replica_batch_size(32) == 16
        made.append(kind(cut(parts[context.input_pipeline_id])))
        return made[-1]
    return strategy.distribute_datasets_from_function(make)

model, found = train(strategy.scope, source)
own = model.predict(source(Rows, EVEN), verbose=0, gather=False).tolist()
whole = Rows(joined(EVEN))
part = model.predict(whole, verbose=0, gather=False).tolist()
refused = {}

def refuse(name, call):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        refused[name] = str(error)

nobody = [(0, 64), (64, 64)]
refuse("nothing", lambda: model.fit(source(Rows, nobody), shuffle=False, verbose=0))
class Wide(Rows):
    def __getitem__(self, index):
        return [a if me else a.astype("float64") for a in super().__getitem__(index)]
refuse("columns", lambda: model.fit(source(Wide, PARTS), shuffle=False, verbose=0))
refuse("steps", lambda: model.fit(source(Rows, PARTS), shuffle=False, verbose=0, steps_per_epoch=3 + me))
refuse("mixed", lambda: model.fit(Rows(cut((0, 64))) if me else source(Rows, PARTS), shuffle=False, verbose=0))
refuse("rows", lambda: model.fit(X[:60 + me], Y[:60 + me], batch_size=32, verbose=0))
after = model.evaluate(source(Rows, PARTS), verbose=0)
print("result", json.dumps({"found": found, "own": own, "part": part, "refused": refused, "after": after,
    "seen": sorted(set(made[0].seen)), "policy": str(strategy.sharding["validation data"]), "report": str(strategy.report())}))
"""
)
ALONE = (
    DATA
    + """
def source(kind, parts):
    if kind is endless:  # each worker's own starts again when it has ended
        one, other = map(cut, parts)
        return kind([np.concatenate([one[i % len(one)], other[i % len(other)]]) for i in range(12)])
    return kind(joined(parts))
model, found = train(phalanx.OneDeviceStrategy("cpu:0").scope, source)
whole = model.predict(X, verbose=0).tolist()
print("result", json.dumps([found, whole, model.evaluate(X, Y, verbose=0)]))
"""
)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return run(ALONE, tmp_path_factory.mktemp("one"), count=1)[0][0]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    found = run(WORK, tmp_path_factory.mktemp("both"))
    return [found[0][0], found[1][0]]


def test_workers_with_different_numbers_of_batches_finish_together_with_the_exact_mean(both, one_device):
    """Reports, row 5: 64 and 96 rows in batches of 16, two epochs of six steps; flat gradients, endless, short."""
    wanted, _, mean = one_device
    for name, values in wanted.items():
        assert_close(both[0]["found"][name], values)
    assert both[0]["found"] == both[1]["found"]
    assert both[0]["found"]["five"]["steps"] == 2 * 6
    assert both[0]["found"]["five"]["evaluate"] == pytest.approx(mean, abs=1e-5), "each of 160 rows once"
    assert "gradients of plain" in both[0]["report"] and "one flat buffer" in both[0]["report"]


def test_each_batch_is_read_by_one_worker_only(both):
    """Reports, row 45: a PyDataset of each worker's own; the policy can be read."""
    assert [each["seen"] for each in both] == [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert both[0]["policy"].startswith("file: ")


def test_each_worker_predicts_its_own_part_or_all(both, one_device):
    """Reports, row 52: `gather=False` for pipelines and for whole batches."""
    _, whole, _ = one_device
    assert_close({"own": both[0]["own"]}, {"own": whole[:60]})
    assert_close({"own": both[1]["own"]}, {"own": whole[60:]})
    parts = both[0]["part"], both[1]["part"]
    assert len(parts[0]) + len(parts[1]) == 160
    sizes = [32, 32, 32, 28, 16, 16, 4]
    assert len(parts[0]) == sum(-(-size // 2) for size in sizes)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "worker 1 has none"),
        ("columns", "worker 0 has x (8,) float64"),
        ("steps", "worker 0 has 3 batches, 3 steps; worker 1 has 4 batches, 4 steps"),
        (
            "mixed",
            "worker 0 has no number of batches, 2 pipelines; worker 1 has 4 batches, no number of pipelines",
        ),
        ("rows", "worker 0 has 60 rows; worker 1 has 61 rows"),
    ],
)
def test_pipelines_that_do_not_fit_together_are_refused_on_all_before_a_step(name, said, both):
    for each in both:
        assert said in each["refused"][name]
        assert each["after"] == both[0]["found"]["five"]["evaluate"], "nothing was trained"
