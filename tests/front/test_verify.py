"""`phalanx.verify` says equal where it is, and names the first step and variable where it is not."""

import jax
import keras
import numpy as np
import pytest

import phalanx

X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def two():
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=["cpu:0", "cpu:1"])


def build(*extra, **compiled):
    model = keras.Sequential([keras.Input((4,)), *extra, keras.layers.Dense(1, name="d")])
    model.compile(**({"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"]} | compiled))
    return model


class ByReplicas(keras.layers.Layer):
    """Wrong on purpose: scales its input by `factor` where there is more than one replica."""

    def __init__(self, factor, after=0, **kwargs):
        super().__init__(**kwargs)
        self.factor, self.after = factor, after

    def build(self, shape):
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        replicas = phalanx.get_strategy().num_replicas_in_sync
        wrong = self.factor if replicas > 1 else 1.0
        return x * keras.ops.where(self.count > self.after, wrong, 1.0)


def test_a_right_model_is_equal_and_every_quantity_is_compared(two):
    report = phalanx.verify(
        lambda: build(keras.layers.Dropout(0.5)), X, Y, two, steps=3, batch_size=4, seed=5
    )
    assert report.equal() and report.equal(1e-6) and report.first() is None
    assert report.steps == 3 and report.largest <= 1e-6
    names = set(report.by_name())
    assert {"loss", "mae", "sequential/d/kernel", "sequential/d/bias"} <= names
    assert any("seed_generator_state" in name for name in names), names
    assert any("iteration" in name for name in names) and any("learning_rate" in name for name in names)
    assert len(report.differences) == 3 * len(names)


def test_the_table_names_both_sides_the_verdict_and_every_quantity(two):
    report = phalanx.verify(build, X, Y, two, steps=2, batch_size=4)
    text = str(report)
    lines = text.splitlines()
    assert lines[0] == "<MirroredStrategy on cpu:0, cpu:1, global view>"
    assert lines[1] == "against <OneDeviceStrategy on cpu:0, global view>: equal within 1e-05 over 2 steps"
    assert lines[3].split("  ")[0] == "what" and lines[3].endswith("largest difference")
    assert len(lines) == 4 + len(report.by_name())
    assert all(line == line.rstrip() for line in lines)
    assert any(line.startswith("variable") and "sequential/d/kernel" in line for line in lines)


@pytest.mark.parametrize("after", [0, 2])
def test_a_planted_difference_is_found_at_its_first_step_and_named(two, after):
    report = phalanx.verify(
        lambda: build(ByReplicas(1.5, after=after, name="planted")), X, Y, two, steps=4, batch_size=4
    )
    assert not report.equal()
    first = report.first()
    assert first.step == after + 1
    worst = max((d for d in report.differences if d.step == first.step), key=lambda d: d.size)
    assert first == worst and first.size > 1e-2
    assert report.by_name()["sequential/d/kernel"] > 1e-2
    assert report.by_name()["sequential/planted/count"] == 0.0
    assert f"first difference beyond 1e-05: {first.name} after step {first.step}" in str(report)
    assert report.largest == max(report.by_name().values())
    assert report.equal(tolerance=report.largest) and not report.equal(tolerance=report.largest * 0.99)


def test_a_layer_that_reads_how_its_input_is_split_is_found_out(two):
    split = []

    class Reads(keras.layers.Layer):
        def call(self, x):
            jax.debug.inspect_array_sharding(x, callback=lambda s: split.append(len(s.device_set)))
            replicas = keras.distribution.distribution().device_mesh.devices.size
            return x + 0.01 * (replicas - 1)

    report = phalanx.verify(lambda: build(Reads()), X, Y, two, steps=1, batch_size=4)
    assert set(split) == {1, 2}
    assert not report.equal() and report.first().step == 1
    assert report.first().name in report.by_name()


def test_a_variable_alone_may_differ_and_is_the_one_that_is_named(two):
    class Remembers(keras.layers.Layer):
        def build(self, shape):
            self.width = self.add_weight(name="width", shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.width.assign(float(phalanx.get_strategy().num_replicas_in_sync))
            return x

    report = phalanx.verify(lambda: build(Remembers(name="r")), X, Y, two, steps=2, batch_size=4)
    first = report.first()
    assert (first.kind, first.name, first.step, first.size) == ("variable", "sequential/r/width", 1, 1.0)
    assert [name for name, size in report.by_name().items() if size > 1e-5] == ["sequential/r/width"]


def test_a_nan_on_one_side_differs_and_on_both_sides_does_not(two):
    one = phalanx.verify(lambda: build(ByReplicas(np.nan)), X, Y, two, steps=1, batch_size=4)
    assert not one.equal(1e9) and one.first(1e9).size == float("inf")
    target = Y.copy()
    target[:] = np.nan
    both = phalanx.verify(build, X, target, two, steps=2, batch_size=4)
    assert both.equal() and both.by_name()["loss"] == 0.0


def test_rows_start_over_at_their_end_with_the_remainder_as_a_batch_of_its_own(two):
    rows = []

    class Counts(keras.Sequential):
        def train_on_batch(self, x, *args, **kwargs):
            rows.append((len(x), float(np.asarray(x)[0, 0])))
            return super().train_on_batch(x, *args, **kwargs)

    def counting():
        model = Counts([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    report = phalanx.verify(counting, X, Y, two, steps=5, batch_size=4)
    starts = [(4, X[0, 0]), (4, X[4, 0]), (2, X[8, 0]), (4, X[0, 0]), (4, X[4, 0])]
    assert rows == [each for start in starts for each in (start, start)]
    assert report.equal() and report.steps == 5


def test_the_same_seed_on_both_sides_and_another_seed_is_another_start(two):
    starts = []

    def keeping():
        model = build(keras.layers.Dense(3))
        starts.append(model.get_weights()[0])
        return model

    phalanx.verify(keeping, X, Y, two, steps=1, batch_size=4, seed=1)
    phalanx.verify(keeping, X, Y, two, steps=1, batch_size=4, seed=2)
    np.testing.assert_array_equal(starts[0], starts[1])
    np.testing.assert_array_equal(starts[2], starts[3])
    assert not np.array_equal(starts[0], starts[2])


def test_trees_of_features_and_targets_are_taken(two):
    def build_tree():
        a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
        out = keras.layers.Dense(1, name="out")(keras.layers.Concatenate()([a, b]))
        model = keras.Model({"a": a, "b": b}, {"out": out})
        model.compile("sgd", {"out": "mse"})
        return model

    assert phalanx.verify(build_tree, {"a": X, "b": Y}, {"out": Y}, two, steps=3, batch_size=4).equal()


@pytest.mark.parametrize(
    ("settings", "quoted"),
    [
        ({"strategy": None}, "strategy=None"),
        ({"strategy": "cpu:0"}, "strategy='cpu:0'"),
        ({"steps": 0}, "steps=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": -4}, "batch_size=-4"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_model_is_built(two, settings, quoted):
    def never():
        raise AssertionError("built")

    with pytest.raises(phalanx.SettingError, match=quoted) as refused:
        phalanx.verify(never, X, Y, **({"strategy": two, "steps": 1, "batch_size": 4} | settings))
    assert "phalanx.verify(" in str(refused.value).split("next:")[1]


def test_columns_of_different_lengths_are_refused(two):
    with pytest.raises(phalanx.DataError, match="x has 10, y has 9"):
        phalanx.verify(build, X, Y[:9], two, steps=1, batch_size=4)


def test_a_tolerance_below_zero_is_refused(two):
    report = phalanx.verify(build, X, Y, two, steps=1, batch_size=4)
    for bad in (-1.0, float("nan")):
        with pytest.raises(phalanx.SettingError, match="tolerance="):
            report.equal(bad)


def test_verify_inside_an_open_scope_is_refused_and_leaves_the_scope_whole(two):
    with two.scope():
        with pytest.raises(phalanx.ScopeError, match="OneDeviceStrategy"):
            phalanx.verify(build, X, Y, two, steps=1, batch_size=4)
        assert phalanx.get_strategy() is two
    assert not phalanx.has_strategy()
