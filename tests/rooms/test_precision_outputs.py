"""Outputs and losses in 16 bits are named at compile, or when the first batch shows them; others are left alone."""

import contextlib
import warnings

import jax
import keras
import numpy as np
import pytest
from keras import layers, losses, ops

import phalanx
from tests.rooms.cases import replicas

SOFTMAX = "sparse_categorical_crossentropy"
LOGITS = losses.SparseCategoricalCrossentropy(from_logits=True)
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
CLASSES = np.arange(8) % 3


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def compiled(build, loss, name="mixed_float16", strategy=None, **rest):
    """The warnings that compiling a model under a policy and a strategy gives, and the model."""
    with warnings.catch_warnings(record=True) as caught, policy(name), (strategy or replicas(2)).scope():
        warnings.simplefilter("always")
        model = build()
        model.compile("sgd", loss, **rest)
    return [w for w in caught if issubclass(w.category, phalanx.PhalanxWarning)], model


def net(*stack):
    return lambda: keras.Sequential([keras.Input((4,)), *(make() for make in stack)])


def dense(units=3, **options):
    return lambda: layers.Dense(units, **options)


def named(caught):
    """The single warning's second line, and the fix in its third."""
    assert len(caught) == 1
    _, received, fix = str(caught[0].message).splitlines()
    assert 'dtype="float32"' in fix
    assert caught[0].filename == __file__, "it points at the user's own line"
    return received


FOUND = {
    "softmax": (net(dense(activation="softmax", name="out")), SOFTMAX),
    "sigmoid": (net(dense(1, activation="sigmoid", name="out")), "binary_crossentropy"),
    "softmax as a layer": (net(dense(), lambda: layers.Softmax(name="out")), SOFTMAX),
    "softmax as an activation layer": (
        net(dense(), lambda: layers.Activation("softmax", name="out")),
        SOFTMAX,
    ),
    "softmax, then a mere cast": (
        net(
            dense(activation="softmax", name="out"),
            lambda: layers.Reshape((3, 1)),
            lambda: layers.Activation("linear", dtype="float32"),
            lambda: layers.Flatten(),
        ),
        SOFTMAX,
    ),
    "logits": (net(dense(name="out")), LOGITS),
    "values": (net(dense(1, name="out")), "mse"),
    "16-bit layer in a float32 model": (net(dense(1, name="out", dtype="float16")), "mse"),
    "in a wrapper": (
        net(
            lambda: layers.RepeatVector(2),
            lambda: layers.TimeDistributed(layers.Dense(3, activation="softmax", name="out")),
        ),
        SOFTMAX,
    ),
    "in a nested model": (
        net(
            dense(),
            lambda: keras.Sequential([keras.Input((3,)), layers.Dense(3, activation="softmax", name="out")]),
        ),
        SOFTMAX,
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_float16_output_gives_one_warning_with_its_name(case):
    build, loss = FOUND[case]
    name = "float32" if case.startswith("16-bit layer") else "mixed_float16"
    caught, _ = compiled(build, loss, name)
    assert "'out'" in named(caught) and "float16" in named(caught)


def test_a_loss_in_16_bits_is_found_behind_a_float32_output():
    caught, _ = compiled(net(dense(1, dtype="float32", name="out")), losses.MeanSquaredError(dtype="float16"))
    assert "MeanSquaredError" in named(caught) and "'out'" in named(caught)


QUIET = {
    "softmax in float32": (
        net(dense(), dense(activation="softmax", dtype="float32")),
        SOFTMAX,
        "mixed_float16",
    ),
    "logits in float32": (net(dense(), dense(dtype="float32")), LOGITS, "mixed_float16"),
    "values in float32": (net(dense(), dense(1, dtype="float32")), "mse", "mixed_float16"),
    "logits cast to float32": (
        net(dense(), lambda: layers.Activation("linear", dtype="float32")),
        LOGITS,
        "mixed_float16",
    ),
    "softmax in float32 after 16-bit logits": (
        net(dense(), lambda: layers.Activation("softmax", dtype="float32")),
        SOFTMAX,
        "mixed_float16",
    ),
    "sigmoid inside": (
        net(dense(activation="sigmoid"), dense(1, dtype="float32")),
        "mse",
        "mixed_float16",
    ),
    "logits in bfloat16": (net(dense()), LOGITS, "mixed_bfloat16"),
    "softmax in bfloat16 under cross-entropy": (net(dense(activation="softmax")), SOFTMAX, "mixed_bfloat16"),
    "values in bfloat16": (net(dense(1)), "mse", "mixed_bfloat16"),
    "softmax under float32": (net(dense(activation="softmax")), SOFTMAX, "float32"),
}


@pytest.mark.parametrize("case", QUIET)
def test_outputs_that_lose_nothing_give_no_warning(case):
    build, loss, name = QUIET[case]
    caught, _ = compiled(build, loss, name)
    assert caught == []


@pytest.mark.parametrize(
    "activation, loss", [("sigmoid", "binary_crossentropy"), ("softmax", "kl_divergence")]
)
def test_other_probabilities_in_bfloat16_are_found(activation, loss):
    caught, _ = compiled(net(dense(activation=activation, name="out")), loss, "mixed_bfloat16")
    assert "'out'" in named(caught) and "bfloat16" in named(caught)


def two_outputs(as_dict):
    def build():
        x = keras.Input((4,))
        p = layers.Dense(1, name="p", dtype="float32")(x)
        q, r = layers.Dense(3, name="q", activation="softmax")(x), layers.Dense(2, name="r")(x)
        return keras.Model(x, {"a": p, "b": q, "c": r} if as_dict else [p, q, r])

    return build


@pytest.mark.parametrize(
    "as_dict, loss, layer_names",
    [
        (False, ["mse", SOFTMAX, None], {"q"}),
        (False, ["mse", SOFTMAX, "mse"], {"q", "r"}),
        (False, {"p": "mse", "q": SOFTMAX}, {"q"}),
        (True, {"a": "mse", "b": SOFTMAX, "c": LOGITS}, {"q", "r"}),
        (True, {"a": "mse"}, set()),
        (True, None, {"q"}),
    ],
)
def test_each_output_is_judged_by_its_own_loss(as_dict, loss, layer_names):
    caught, _ = compiled(two_outputs(as_dict), loss)
    received = named(caught) if layer_names else ""
    assert {name for name in "pqr" if f"'{name}' (Dense)" in received} == layer_names
    assert len(caught) == bool(layer_names)


class Subclassed(keras.Model):
    """Its outputs are known only by running it."""

    def __init__(self, cast=False):
        super().__init__()
        self.gate = layers.Dense(4, activation="sigmoid", name="gate")
        self.out = layers.Dense(
            3, activation="softmax", name="out", dtype="float32" if cast == "layer" else None
        )
        self.after = layers.Activation("linear", dtype="float32") if cast == "after" else None

    def call(self, x):
        x = self.out(ops.abs(self.gate(x)) * 2)
        return self.after(x) if self.after else x


def test_a_subclassed_model_is_judged_once_when_its_first_batch_builds_it():
    caught, model = compiled(Subclassed, SOFTMAX)
    assert caught == [], "nothing can be known yet"
    with pytest.warns(phalanx.PhalanxWarning) as caught:
        model.fit(X, CLASSES, batch_size=8, verbose=0)
        model.evaluate(X, CLASSES, batch_size=8, verbose=0)
    assert "'out'" in named(list(caught))
    assert "call" not in model.out.__dict__


def test_a_subclassed_model_with_a_mere_cast_after_its_softmax_is_found_too():
    _, model = compiled(lambda: Subclassed("after"), SOFTMAX)
    with pytest.warns(phalanx.PhalanxWarning, match="'out'"):
        model.test_on_batch(X, CLASSES)


def test_a_subclassed_model_with_a_float32_output_trains_without_a_word():
    _, model = compiled(lambda: Subclassed("layer"), SOFTMAX)
    model.test_on_batch(X, CLASSES)  # warnings are errors here


def test_a_sequential_model_without_input_is_judged_by_its_first_batch():
    caught, model = compiled(
        lambda: keras.Sequential([layers.Dense(3, activation="softmax", name="out")]), SOFTMAX
    )
    assert caught == []
    with pytest.warns(phalanx.PhalanxWarning, match="'out'"):
        model.test_on_batch(X, CLASSES)


def test_strict_refuses_at_compile_and_again_before_any_step():
    strict = phalanx.MirroredStrategy(["cpu:0", "cpu:1"], precision=phalanx.Precision(strict=True))
    with policy("mixed_float16"), strict.scope():
        model = FOUND["softmax"][0]()
        with pytest.raises(phalanx.UnsupportedError, match="'out'"):
            model.compile("sgd", SOFTMAX)
    with pytest.raises(phalanx.UnsupportedError, match='dtype="float32"'):
        model.fit(X, CLASSES, verbose=0)
    assert model.optimizer is None or not model.optimizer.built or int(model.optimizer.iterations) == 0


def test_strict_refuses_a_subclassed_model_before_its_first_step():
    strict = phalanx.OneDeviceStrategy("cpu:0", precision=phalanx.Precision(strict=True))
    _, model = compiled(Subclassed, SOFTMAX, strategy=strict)
    with pytest.raises(phalanx.UnsupportedError, match="'out'"):
        model.fit(X, CLASSES, verbose=0)
    assert int(model.optimizer.iterations) == 0


def test_strict_has_nothing_against_float32_outputs():
    strict = phalanx.MirroredStrategy(["cpu:0", "cpu:1"], precision=phalanx.Precision(strict=True))
    build, loss, name = QUIET["softmax in float32"]
    assert compiled(build, loss, name, strategy=strict)[0] == []


def test_a_second_compile_is_judged_anew():
    _, model = compiled(*FOUND["values"])
    with pytest.warns(phalanx.PhalanxWarning, match="'out'"):
        model.compile("sgd", "mae")


def test_a_strategy_that_takes_a_model_over_looks_at_it_too():
    _, model = compiled(Subclassed, SOFTMAX)
    with pytest.warns(phalanx.PhalanxWarning):
        model.test_on_batch(X, CLASSES)
    strict = phalanx.MirroredStrategy(["cpu:0", "cpu:1"], precision=phalanx.Precision(strict=True))
    with strict.scope(), pytest.raises(phalanx.UnsupportedError, match="'out'"):
        model.evaluate(X, CLASSES, verbose=0)


def test_a_users_own_outputs_attribute_is_no_graph():
    def build():
        model = Subclassed("layer")
        model.outputs = [1, 2]
        return model

    assert compiled(build, SOFTMAX)[0] == []


def test_precision_is_a_phalanx_value_and_not_a_policy_name():
    with pytest.raises(phalanx.SettingError, match=r"received: precision='mixed_float16'"):
        phalanx.MirroredStrategy(["cpu:0"], precision="mixed_float16")


def test_a_model_without_a_strategy_is_keras_own_affair():
    with policy("mixed_float16"):
        FOUND["softmax"][0]().compile("sgd", SOFTMAX)  # warnings are errors here


# ------------------------------------------------------------------------ why the rules are what they are


def slopes(dtype, kind, *scores, scale=1.0):
    """The gradients of single rows' losses with respect to their scores, given the dtype of the output.

    "softmax", "kl" and "logits" have the scores (score, 0) and want the first class; "sigmoid" has one score and
    wants the other class.
    """

    def loss(score):
        both = ops.stack([score, 0.0]).astype(dtype)[None]
        if kind == "sigmoid":
            value = losses.BinaryCrossentropy()(np.zeros((1, 1)), ops.sigmoid(both[:, :1]))
        elif kind == "kl":
            value = losses.KLDivergence()(np.array([[1.0, 0.0]]), ops.softmax(both))
        else:
            logits = kind == "logits"
            value = losses.SparseCategoricalCrossentropy(from_logits=logits)(
                np.array([0]), both if logits else ops.softmax(both)
            )
        return value * scale

    return np.asarray(jax.jit(jax.vmap(jax.grad(loss)))(np.array(scores, "float32"))) / scale


SCORES = -11.0, 0.3125, 7.0, 9.0  # exact in bfloat16


def test_a_bfloat16_sigmoid_has_no_gradient_for_a_row_that_is_wrong_and_sure_of_it():
    assert slopes("float32", "sigmoid", 7.0) > 0.99
    assert slopes("bfloat16", "sigmoid", 7.0) == 0.0


def test_a_bfloat16_softmax_is_precise_under_cross_entropy_and_not_under_another_loss():
    rounded, wanted = (slopes(dtype, "softmax", *SCORES) for dtype in ("bfloat16", "float32"))
    np.testing.assert_allclose(rounded, wanted, rtol=4 * 2.0**-8)  # each is rounded some times on its way
    assert slopes("float32", "kl", 7.0) < -9e-4 and slopes("bfloat16", "kl", 7.0) == 0.0


def test_bfloat16_logits_are_precise():
    rounded, wanted = (slopes(dtype, "logits", *SCORES) for dtype in ("bfloat16", "float32"))
    np.testing.assert_allclose(rounded, wanted, rtol=2.0**-8)


def test_a_scaled_float16_softmax_overflows_on_an_unlikely_row_where_logits_do_not():
    first = 2.0**15 / 64  # the first loss scale, in a batch of 64 rows
    assert not np.isfinite(slopes("float16", "softmax", -7.0, scale=first)).any()
    assert abs(slopes("float16", "logits", -7.0, scale=first) + 1) < 2.0**-9
