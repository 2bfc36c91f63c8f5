"""Strategies as objects: what they are, say and leave behind."""

import gc
import weakref

import jax
import keras
import numpy as np
import pytest
from keras.src.distribution import distribution_lib

import phalanx

X = np.ones((16, 4), "float32")


def mirrored(replicas=2, **options):
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=[f"cpu:{i}" for i in range(replicas)], **options)


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


# ------------------------------------------------------------------------------- which one is in force


def test_outside_any_scope_there_is_a_default_strategy_of_one_replica():
    default = phalanx.get_strategy()
    assert isinstance(default, phalanx.OneDeviceStrategy)
    assert default.num_replicas_in_sync == 1
    assert phalanx.get_strategy() is default
    assert not phalanx.has_strategy()
    assert keras.distribution.distribution() is None, "asking sets nothing"


def test_the_default_strategy_trains_like_any_other():
    with phalanx.get_strategy().scope():
        assert phalanx.has_strategy()
        model = build()
    assert len(model.fit(X, X[:, :1], verbose=0).epoch) == 1


def test_inside_a_scope_the_strategy_is_in_force_and_yielded():
    strategy = mirrored()
    with strategy.scope() as yielded:
        assert yielded is strategy
        assert phalanx.get_strategy() is strategy
        assert phalanx.has_strategy()
    assert not phalanx.has_strategy()
    assert phalanx.get_strategy() is not strategy


def test_a_scope_is_a_strategys_own_and_may_be_made_again():
    strategy = mirrored()
    for _ in range(2):
        with strategy.scope():
            assert phalanx.get_strategy() is strategy


# ------------------------------------------------------------------------------- what they are


@pytest.mark.parametrize("make", [mirrored, phalanx.OneDeviceStrategy])
def test_strategies_are_keras_distributions(make):
    strategy = make()
    assert isinstance(strategy, distribution_lib.Distribution)
    assert isinstance(strategy, phalanx.Strategy)


@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_replicas_are_counted(replicas):
    assert mirrored(replicas).num_replicas_in_sync == replicas


def test_without_names_every_local_device_holds_a_replica():
    assert phalanx.MirroredStrategy().num_replicas_in_sync == len(jax.local_devices()) >= 8


def test_one_device_strategy_lives_on_the_device_that_is_named():
    strategy = phalanx.OneDeviceStrategy("cpu:3")
    with strategy.scope():
        model = build()
    model.fit(X, X[:, :1], verbose=0)
    assert {d.id for v in model.variables for d in v.value.sharding.device_set} == {3}


def test_the_default_device_of_one_device_strategy_is_the_first_cpu():
    assert phalanx.OneDeviceStrategy().device_names == ("cpu:0",)


def test_replicas_stand_in_the_order_of_their_names():
    strategy = phalanx.MirroredStrategy(devices=["cpu:5", "cpu:2"])
    assert strategy.device_names == ("cpu:5", "cpu:2")
    assert [device.id for device in strategy.placement.devices] == [5, 2]


def test_the_view_is_global_unless_asked_otherwise_and_no_third_thing():
    assert mirrored().view == "global"
    assert mirrored(view="replica").view == "replica"
    with pytest.raises(phalanx.SettingError, match="view='local'") as refused:
        mirrored(view="local")
    assert "'global', 'replica'" in str(refused.value)


def test_host_only_is_a_list_and_a_lone_name_is_refused_with_the_list():
    with pytest.raises(phalanx.SettingError, match=r"host_only='id'") as refused:
        mirrored(host_only="id")
    assert "host_only=['id']" in str(refused.value).split("next:")[1]


# ------------------------------------------------------------------------------- what they say


def test_repr_names_class_devices_and_view():
    assert repr(mirrored()) == str(mirrored()) == "<MirroredStrategy on cpu:0, cpu:1, global view>"
    assert repr(phalanx.OneDeviceStrategy("cpu:1")) == "<OneDeviceStrategy on cpu:1, global view>"


def test_describe_prints_a_table_with_global_worker_and_replica_batches():
    assert str(mirrored(4).describe(global_batch=32)) == (
        "setting             value\n"
        "strategy            MirroredStrategy\n"
        "devices             cpu:0, cpu:1, cpu:2, cpu:3\n"
        "replicas            4\n"
        "workers             1\n"
        "view                global\n"
        "batch, global       32\n"
        "batch, per worker   32\n"
        "batch, per replica  8"
    )


def test_describe_without_a_batch_has_no_batch_lines():
    text = str(mirrored(view="replica").describe())
    assert "batch" not in text and text.splitlines()[-1].split() == ["view", "replica"]


def test_describe_of_an_uneven_batch_lists_each_replica():
    description = mirrored(4).describe(global_batch=10)
    assert description.batch_per_replica == (3, 3, 3, 1)
    assert description.batch_per_worker == (10,)
    assert str(description).splitlines()[-1] == "batch, per replica  3, 3, 3, 1"


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "32"])
def test_describe_refuses_a_batch_that_is_no_number_of_rows(bad):
    with pytest.raises(phalanx.SettingError, match="global_batch="):
        mirrored().describe(global_batch=bad)


# ------------------------------------------------------------------------------- what they leave behind


def test_a_trained_model_and_its_strategy_are_garbage_once_dropped():
    strategy = mirrored()
    with strategy.scope():
        model = build()
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    model.predict(X, batch_size=8, verbose=0)
    gone = weakref.ref(model), weakref.ref(strategy), weakref.ref(model.layers[0])
    del model, strategy
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_a_model_keeps_its_strategy_alive():
    strategy = mirrored()
    with strategy.scope():
        model = build()
    kept = weakref.ref(strategy)
    del strategy
    gc.collect()
    assert kept() is not None
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    assert {len(v.value.sharding.device_set) for v in model.trainable_variables} == {2}


def test_an_unused_strategy_is_garbage_once_dropped():
    strategy = mirrored()
    gone = weakref.ref(strategy)
    del strategy
    gc.collect()
    assert gone() is None


def test_training_leaves_no_attribute_on_the_model_that_keras_tracks():
    with mirrored().scope():
        model = build()
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    assert not [name for name in model.get_config() if "phalanx" in name]
    assert "phalanx" not in str(model.to_json())
