"""The table of models that must train alike on one device and on replicas, and how two runs are compared.

The oracle is one device: plain Keras without a strategy, same seed, same global batch.

Where the bound of 1e-5 comes from: replicas add the same float32 numbers in another order, in at most 8 parts.
Each such sum may differ by 7 unit roundoffs (2^-24) of the sum of its terms' sizes, 4e-7; a few layers and
the handful of updates of each case leave that below 1e-5. Nothing else may differ, so counters, seeds and
confusion counts are compared by the same rule and come out equal to the bit.

One limit is real, and not one of replicas: a gradient that is zero in exact arithmetic (a bias before
BatchNormalization, a bias of attention keys) is rounding noise, and Adam divides noise by its own size: any
reordering, also another compiler flag on one device, moves such a weight by a full learning rate. Models here
carry no such bias under Adam; `test_exactness_cases.py` shows the limit with SGD, where it is harmless.

Compiling is nearly all of the cost, random numbers and Adam's many small kernels most of that; so models that
are not about dropout have none, and models that are not about the optimizer train with SGD and momentum, whose
updates are proportional to the gradients that they check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, losses, metrics, ops, optimizers

TRAIN_ROWS, VAL_ROWS, BATCH = 37, 13, 16  # 16 + 16 + 5: the tail leaves replicas short, on 8 replicas empty


@dataclass(frozen=True, kw_only=True)
class Data:
    """What goes into `fit`; rows need not divide by anything.

    Args:
        x, y: Training features and targets.
        val: `(x, y)` of validation, also used for `evaluate` and `predict`.
        weights: `sample_weight` or `class_weight`, as keyword arguments of `fit`.
    """

    x: Any
    y: Any
    val: tuple[Any, Any]
    weights: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model with its data.

    Args:
        build: Makes and compiles the model.
        data: Makes the data.
        everywhere: True to run on 1, 2 and 8 replicas as well as on 4.
        predicts: True to compare predictions, too.
        batch: Global batch.
        epochs, fits: Epochs of each `fit`, and number of `fit` calls one after the other.
        shuffle: Whether `fit` draws a permutation.
        tolerance: Largest `|a - b| / max(1, |a|)`.
    """

    build: Callable[[], keras.Model]
    data: Callable[[], Data]
    everywhere: bool = False
    predicts: bool = False
    batch: int = BATCH
    epochs: int = 2
    fits: int = 1
    shuffle: bool = False
    tolerance: float = 1e-5


# ------------------------------------------------------------------------------------------- data


def _split(x: Any, y: Any, **weights: Any) -> Data:
    """The first rows to train on, the rest to validate with."""
    cut = functools.partial(keras.tree.map_structure, lambda column: column[:TRAIN_ROWS])
    rest = functools.partial(keras.tree.map_structure, lambda column: column[TRAIN_ROWS:])
    return Data(x=cut(x), y=cut(y), val=(rest(x), rest(y)), weights=weights)


def _floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(TRAIN_ROWS + VAL_ROWS, *shape)).astype("float32")


def _classes(count: int, *shape: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, count, (TRAIN_ROWS + VAL_ROWS, *shape)).astype("int32")


def regression() -> Data:
    x = _floats(6)
    return _split(x, np.sin(x[:, :2].sum(1, keepdims=True)) + 0.1 * _floats(1, seed=3))


def three_classes() -> Data:
    return _split(_floats(6), _classes(3))


def binary() -> Data:
    x = _floats(6)
    return _split(x, (x[:, :1] + 0.5 * _floats(1, seed=3) > 0).astype("float32"))


def images() -> Data:
    return _split(_floats(8, 8, 2), _classes(3))


def sentences() -> Data:
    """Tokens 1..11 of at most 5, zeros at the end of short ones."""
    tokens = _classes(11, 5) + 1
    lengths = np.random.default_rng(4).integers(1, 6, len(tokens))
    return _split(np.where(np.arange(5) < lengths[:, None], tokens, 0).astype("int32"), _classes(3))


def tagged_sentences() -> Data:
    """A target at every token."""
    data = sentences()
    tags = _floats(5, 1, seed=5)
    return Data(x=data.x, y=tags[:TRAIN_ROWS], val=(data.val[0], tags[TRAIN_ROWS:]))


def sequences() -> Data:
    return _split(_floats(4, 3), _floats(1, seed=3))


def even_sequences() -> Data:
    """24 and 12 rows, for models whose batch is fixed at 6 (two rows a replica on 4, the last one empty)."""
    x, y = _floats(4, 3), _floats(1, seed=3)
    return Data(x=x[:24], y=y[:24], val=(x[24:36], y[24:36]))


def sample_weighted() -> Data:
    data = regression()
    weights = np.random.default_rng(6).uniform(0, 2, TRAIN_ROWS).astype("float32")
    weights[:4] = 0
    return Data(x=data.x, y=data.y, val=data.val, weights={"sample_weight": weights})


def class_weighted() -> Data:
    data = three_classes()
    return Data(x=data.x, y=data.y, val=data.val, weights={"class_weight": {0: 0.5, 1: 1.0, 2: 3.0}})


def two_lists() -> Data:
    return _split([_floats(4), _floats(3, seed=7)], [_floats(1, seed=3), _classes(2, 1).astype("float32")])


def two_dicts() -> Data:
    data = two_lists()
    named = [dict(zip("ab", data.x)), dict(zip("pq", data.y))]
    val = dict(zip("ab", data.val[0])), dict(zip("pq", data.val[1]))
    weights = np.random.default_rng(6).uniform(0.5, 2, (2, TRAIN_ROWS)).astype("float32")
    return Data(x=named[0], y=named[1], val=val, weights={"sample_weight": dict(zip("pq", weights))})


# ------------------------------------------------------------------------------------------ models


def _compiled(model: keras.Model, optimizer: Any = None, loss: Any = "mse", **rest: Any) -> keras.Model:
    model.compile(optimizer or optimizers.SGD(0.05, momentum=0.9), loss, **rest)
    return model


def _net(
    *stack: layers.Layer, optimizer: Any = None, loss: Any = "mse", shape: Any = (6,), **rest: Any
) -> keras.Model:
    """A sequential model, compiled."""
    model = keras.Sequential([keras.Input(shape), *stack])
    return _compiled(model, optimizer, loss, **rest)


def _classifier(*stack: layers.Layer, shape: Any, optimizer: Any = None) -> keras.Model:
    return _net(
        *stack,
        layers.Dense(3, activation="softmax"),
        shape=shape,
        optimizer=optimizer,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )


def mlp(optimizer: Any = None, loss: Any = "mse", **rest: Any) -> keras.Model:
    """Dense layers alone, for cases about optimizers, losses and weights."""
    hidden, out = layers.Dense(16, activation="tanh"), layers.Dense(1)
    return _net(hidden, out, optimizer=optimizer, loss=loss, **({"metrics": ["mae"]} | rest))


def conv_bn_dropout() -> keras.Model:
    stack = [
        layers.Conv2D(4, 3, use_bias=False),  # no bias before BN: its gradient would be noise
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Dropout(0.3),
        layers.Flatten(),
    ]
    return _classifier(*stack, shape=(8, 8, 2), optimizer=optimizers.Adam(0.01))


def conv_kinds() -> keras.Model:
    stack = [
        layers.SeparableConv2D(4, 3, strides=2, activation="tanh"),
        layers.Conv2DTranspose(3, 2, activation="tanh"),
        layers.GlobalAveragePooling2D(),
    ]
    return _classifier(*stack, shape=(8, 8, 2))


def batch_normalization() -> keras.Model:
    hidden = layers.Dense(16, use_bias=False)
    return _net(hidden, layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.Dense(1))


def layer_normalization() -> keras.Model:
    stack = [
        layers.Dense(16),
        layers.LayerNormalization(),
        layers.GroupNormalization(4),
        layers.ReLU(),
        layers.Dense(1),
    ]
    return _net(*stack)


def random_layers() -> keras.Model:
    hidden, drop = layers.Dense(16, activation="relu"), layers.Dropout(0.5)
    return _net(layers.GaussianNoise(0.5), hidden, drop, layers.Dense(1))


def spectral_normalization() -> keras.Model:
    return _net(
        layers.SpectralNormalization(layers.Dense(8, activation="tanh")), layers.PReLU(), layers.Dense(1)
    )


def embedding() -> keras.Model:
    return _classifier(layers.Embedding(12, 4), layers.Flatten(), shape=(5,))


def lstm() -> keras.Model:
    return _net(layers.LSTM(5), layers.Dense(1), shape=(4, 3))


def gru() -> keras.Model:
    return _net(layers.GRU(4), layers.Dense(1), shape=(4, 3))


def masked_lstm() -> keras.Model:
    return _classifier(layers.Embedding(12, 4, mask_zero=True), layers.LSTM(5), shape=(5,))


def masked_loss() -> keras.Model:
    """The mask reaches the loss, which averages over the tokens that count."""
    stack = [layers.Embedding(12, 4, mask_zero=True), layers.LSTM(5, return_sequences=True), layers.Dense(1)]
    return _net(*stack, shape=(5,), metrics=["mae"])


def stateful_lstm() -> keras.Model:
    """Its states are variables of (batch, units); a fixed batch is what stateful layers ask for."""
    model = keras.Sequential(
        [keras.Input(batch_shape=(6, 4, 3)), layers.LSTM(5, stateful=True), layers.Dense(1)]
    )
    return _compiled(model)


def attention() -> keras.Model:
    tokens = keras.Input((5,), dtype="int32")
    h = layers.Embedding(12, 8)(tokens)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4)(h, h))
    h = layers.GlobalAveragePooling1D()(h)
    model = keras.Model(tokens, layers.Dense(3)(h))
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    return _compiled(model, loss=loss, metrics=["accuracy"])


def regularised() -> keras.Model:
    hidden = layers.Dense(
        16, activation="relu", kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01)
    )
    return _net(hidden, layers.Dense(1, bias_regularizer="l1"), metrics=["mae"])


class Penalty(layers.Layer):
    """Adds a loss of what passes through, over the whole batch at once."""

    def call(self, x):
        self.add_loss(0.1 * ops.max(ops.mean(ops.square(x), axis=0)))
        return x


def added_loss() -> keras.Model:
    return _net(layers.Dense(8, activation="tanh"), Penalty(), layers.Dense(1))


def accumulated() -> keras.Model:
    return mlp(optimizers.Adam(0.01, gradient_accumulation_steps=2))


def scheduled() -> keras.Model:
    return mlp(optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.7)))


def adamw_ema() -> keras.Model:
    """After the first `fit`, each weight and its average may be one array; the second must not trip over it."""
    return mlp(optimizers.AdamW(0.01, clipnorm=0.5, use_ema=True, ema_momentum=0.8))


def counted() -> keras.Model:
    """Metrics that are no mean over rows: they must be merged, not averaged."""
    kinds = [
        metrics.AUC(),
        metrics.Precision(),
        metrics.Recall(),
        metrics.F1Score(threshold=0.5, average="micro"),
        metrics.FalsePositives(),
    ]
    return _net(
        layers.Dense(8, activation="tanh"),
        layers.Dense(1, activation="sigmoid"),
        loss="binary_crossentropy",
        metrics=kinds,
        weighted_metrics=[metrics.AUC(name="weighted_auc")],
    )


def mean_iou() -> keras.Model:
    model = _classifier(layers.Dense(8, activation="tanh"), shape=(6,))
    kinds = [metrics.MeanIoU(3, sparse_y_pred=False), metrics.SparseTopKCategoricalAccuracy(2)]
    return _compiled(model, loss="sparse_categorical_crossentropy", metrics=kinds)


def _two_in_two_out() -> tuple[list[Any], list[Any]]:
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    h = layers.Dense(8, activation="tanh")(layers.Concatenate()([a, b]))
    return [a, b], [layers.Dense(1, name="p")(h), layers.Dense(1, activation="sigmoid", name="q")(h)]


def lists_in_and_out() -> keras.Model:
    ins, outs = _two_in_two_out()
    rest = {"loss_weights": [0.3, 0.7], "metrics": [["mae"], ["accuracy", metrics.AUC()]]}
    return _compiled(keras.Model(ins, outs), None, ["mse", "binary_crossentropy"], **rest)


def dicts_in_and_out() -> keras.Model:
    ins, outs = _two_in_two_out()
    model = keras.Model(dict(zip("ab", ins)), dict(zip("pq", outs)))
    loss = {"p": "mse", "q": "binary_crossentropy"}
    rest = {"loss_weights": {"p": 0.3, "q": 0.7}, "weighted_metrics": {"p": ["mae"], "q": ["accuracy"]}}
    return _compiled(model, None, loss, **rest)


class Subclassed(keras.Model):
    """Has no variable before its first batch."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.out = layers.Dense(8, activation="relu"), layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


def built_by_first_batch() -> keras.Model:
    return _compiled(Subclassed(), metrics=["mae"])


def frozen() -> keras.Model:
    base = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, use_bias=False), layers.BatchNormalization(), layers.ReLU()],
        name="base",
    )
    base.trainable = False
    return _net(base, layers.Dense(4, activation="tanh"), layers.Dense(1))


def lora() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Embedding(12, 4),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dense(3),
        ]
    )
    model.layers[0].enable_lora(2)
    model.layers[2].enable_lora(3)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    return _compiled(model, loss=loss, metrics=["accuracy"])


class Counting(layers.Layer):
    """Own state of three kinds: a whole counter, a running sum over rows, and an extreme over the batch."""

    def build(self, shape):
        add = functools.partial(self.add_weight, initializer="zeros", trainable=False)
        self.calls, self.total = add((), dtype="int32", name="calls"), add((shape[-1],), name="total")
        self.largest = add((), name="largest")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
            self.total.assign_add(ops.sum(x, axis=0))
            self.largest.assign(ops.maximum(self.largest, ops.max(x)))
        return x / (1.0 + self.largest)


def own_counters() -> keras.Model:
    return _net(Counting(), layers.Dense(8, activation="tanh"), layers.Dense(1))


class OwnTrainStep(keras.Model):
    """A step in Keras's stateless JAX style, with a loss and a metric of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_seen = metrics.Mean(name="loss")
        self.worst = metrics.MeanMetricWrapper(lambda y, p: ops.max(ops.abs(y - p), axis=-1), name="worst")

    @property
    def metrics(self):
        return [self.loss_seen, self.worst]

    def _loss(self, trainable, non_trainable, x, y, training):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=training)
        return ops.mean(ops.square(y - y_pred)), (y_pred, non_trainable)

    def _measure(self, values, loss, x, y, y_pred):
        half = len(self.loss_seen.variables)
        seen = self.loss_seen.stateless_update_state(values[:half], loss, sample_weight=x.shape[0])
        worst = self.worst.stateless_update_state(values[half:], y, y_pred)
        logs = {"loss": self.loss_seen.stateless_result(seen), "worst": self.worst.stateless_result(worst)}
        return logs, [*seen, *worst]

    def train_step(self, state, data):
        import jax

        trainable, non_trainable, optimizer, values = state
        x, y = data
        gradient = jax.value_and_grad(self._loss, has_aux=True)
        (loss, (y_pred, non_trainable)), grads = gradient(trainable, non_trainable, x, y, True)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        logs, values = self._measure(values, loss, x, y, y_pred)
        return logs, (trainable, non_trainable, optimizer, values)

    def test_step(self, state, data):
        trainable, non_trainable, values = state
        x, y = data
        loss, (y_pred, non_trainable) = self._loss(trainable, non_trainable, x, y, False)
        logs, values = self._measure(values, loss, x, y, y_pred)
        return logs, (trainable, non_trainable, values)


class OwnTestStep(keras.Model):
    """Logs that belong to no metric: the numbers of the last batch, over all of its rows."""

    def test_step(self, state, data):
        trainable, non_trainable, values = state
        x, y = data
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=False)
        logs = {
            "spread": ops.max(y_pred) - ops.min(y_pred),
            "bias": ops.mean(y_pred - y),
            "rows": ops.shape(x)[0],
        }
        return logs, (trainable, non_trainable, values)


class PairLoss(keras.Model):
    """A loss over all pairs of rows of the global batch: no share of it could be computed alone."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        order = ops.sign(y - ops.transpose(y))
        return ops.mean(ops.softplus(-order * (y_pred - ops.transpose(y_pred))))


class WeightedByHand(keras.Model):
    """One loss per row (reduction=None), reduced by the weights of the batch."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        each = super().compute_loss(x, y, y_pred, sample_weight, training)
        return ops.sum(each) / (ops.shape(each)[0] if sample_weight is None else ops.sum(sample_weight))


def _two_layers(kind: type[keras.Model], loss: Any = "mse") -> keras.Model:
    x = keras.Input((6,))
    model = kind(x, layers.Dense(1)(layers.Dense(8, activation="tanh")(x)))
    return _compiled(model, loss=loss)


def mixed(policy: str) -> keras.Model:
    """Float32 weights, 16-bit compute; SGD, whose updates are as exact as the gradients."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        hidden, out = layers.Dense(16, activation="tanh"), layers.Dense(1, dtype="float32")
        return _net(hidden, out, optimizer=optimizers.SGD(0.05, momentum=0.9), metrics=["mae"])
    finally:
        keras.config.set_dtype_policy(before)


def _reduced(reduction: str) -> Callable[[], keras.Model]:
    return lambda: mlp(loss=losses.MeanSquaredError(reduction=reduction))


def _with(optimizer: Callable[[], Any], **rest: Any) -> Callable[[], keras.Model]:
    return lambda: mlp(optimizer(), **rest)


# 16-bit compute rounds each partial sum of a gradient to 16 bits before the parts meet: 8 parts, half a
# unit in the last place each, so 4 epsilons of the 16-bit type on numbers of size one.
BFLOAT16, FLOAT16 = 4 * 2.0**-7, 4 * 2.0**-10

CASES = {
    "dense": Case(
        build=lambda: _classifier(layers.Dense(16, activation="relu"), shape=(6,)), data=three_classes
    ),
    "conv, batch norm, dropout, Adam": Case(
        build=conv_bn_dropout, data=images, everywhere=True, predicts=True
    ),
    "separable and transposed conv": Case(build=conv_kinds, data=images),
    "batch norm": Case(build=batch_normalization, data=regression),
    "layer and group norm": Case(build=layer_normalization, data=regression),
    "noise and dropout": Case(build=random_layers, data=regression),
    "spectral norm": Case(build=spectral_normalization, data=regression),
    "embedding": Case(build=embedding, data=sentences),
    "LSTM": Case(build=lstm, data=sequences),
    "GRU": Case(build=gru, data=sequences),
    "LSTM with mask": Case(build=masked_lstm, data=sentences),
    "mask in the loss": Case(build=masked_loss, data=tagged_sentences),
    "stateful LSTM": Case(build=stateful_lstm, data=even_sequences, batch=6, predicts=True),
    "attention": Case(build=attention, data=sentences),
    "regularisers": Case(build=regularised, data=regression, everywhere=True),
    "add_loss": Case(build=added_loss, data=regression),
    "loss by sum": Case(
        build=lambda: mlp(optimizers.SGD(0.005), losses.MeanSquaredError("sum")),
        data=regression,
        everywhere=True,
    ),
    "loss by mean": Case(build=_reduced("mean"), data=regression),
    "loss by mean_with_sample_weight": Case(build=_reduced("mean_with_sample_weight"), data=sample_weighted),
    "loss by none with weights": Case(
        build=lambda: _two_layers(WeightedByHand, losses.MeanSquaredError(None)), data=sample_weighted
    ),
    "SGD with momentum": Case(
        build=_with(lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True)), data=regression
    ),
    "SGD with clipnorm": Case(build=_with(lambda: optimizers.SGD(0.1, clipnorm=0.1)), data=regression),
    "Adam with global_clipnorm": Case(
        build=_with(lambda: optimizers.Adam(0.01, global_clipnorm=0.1)), data=regression
    ),
    "SGD with clipvalue and EMA": Case(
        build=_with(lambda: optimizers.SGD(0.05, clipvalue=0.05, use_ema=True, ema_overwrite_frequency=2)),
        data=regression,
    ),
    "AdamW with clipnorm and EMA, fit twice": Case(build=adamw_ema, data=regression, fits=2),
    "RMSprop": Case(
        build=_with(lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5)), data=regression
    ),
    "gradient accumulation": Case(build=accumulated, data=regression),
    "learning-rate schedule": Case(build=scheduled, data=regression),
    "sample_weight": Case(
        build=_with(lambda: None, weighted_metrics=["mae"]), data=sample_weighted, everywhere=True
    ),
    "class_weight": Case(build=lambda: _classifier(layers.Dense(8), shape=(6,)), data=class_weighted),
    "AUC, F1, precision, counts": Case(build=counted, data=binary, everywhere=True),
    "MeanIoU": Case(build=mean_iou, data=three_classes),
    "lists in and out": Case(build=lists_in_and_out, data=two_lists, predicts=True),
    "dicts in and out": Case(build=dicts_in_and_out, data=two_dicts, predicts=True),
    "built by the first batch": Case(
        build=built_by_first_batch, data=regression, everywhere=True, predicts=True
    ),
    "frozen layers": Case(build=frozen, data=regression),
    "LoRA": Case(build=lora, data=sentences),
    "own counters": Case(build=own_counters, data=regression, everywhere=True),
    "own train_step": Case(build=lambda: _two_layers(OwnTrainStep), data=regression, everywhere=True),
    "own test_step": Case(build=lambda: _two_layers(OwnTestStep), data=regression),
    "own compute_loss": Case(build=lambda: _two_layers(PairLoss), data=regression),
    "shuffled": Case(build=mlp, data=regression, shuffle=True, everywhere=True),
    "three steps per execution": Case(build=_with(lambda: None, steps_per_execution=3), data=regression),
    "eager": Case(build=_with(lambda: optimizers.SGD(0.05), run_eagerly=True), data=regression),
    "mixed_bfloat16": Case(build=lambda: mixed("mixed_bfloat16"), data=regression, tolerance=BFLOAT16),
    "mixed_float16": Case(build=lambda: mixed("mixed_float16"), data=regression, tolerance=FLOAT16),
}


# ------------------------------------------------------------------------------------------- runs


OURS = ("loss_scale", "skipped_steps")  # logs under a strategy that plain Keras does not have


def fresh(seed: int = 0) -> None:
    """Start names anew and seed everything random, so that two builds of a model are twins."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)


def replicas(count: int, **settings: Any) -> Any:
    """A strategy on `count` CPU replicas."""
    import jax

    import phalanx

    assert len(jax.devices("cpu")) >= 8, "these tests need 8 CPU devices, see tests/conftest.py"
    return phalanx.MirroredStrategy([f"cpu:{i}" for i in range(count)], **settings)


def built(build: Callable[[], keras.Model], strategy: Any = None, seed: int = 0) -> keras.Model:
    """A model with fixed initial values, on one device or in a strategy's scope."""
    fresh(seed)
    if strategy is None:
        return build()
    with strategy.scope():
        return build()


def train(case: Case, strategy: Any = None) -> dict[str, np.ndarray]:
    """Fit, evaluate and predict a case, outside the scope.

    Returns:
        Everything that can be compared, by name: see `everything`.
    """
    model, data = built(case.build, strategy), case.data()
    seen: dict[str, Any] = {}
    for round in range(case.fits):
        if round and strategy is None:
            # After EMA, a weight and its average are one array, and Keras's own second fit stops on it
            # ("donate the same buffer twice"); the oracle needs a copy of each to go on.
            for _, variable in variables(model):
                variable.assign(np.array(variable.value))
        history = model.fit(
            data.x,
            data.y,
            batch_size=case.batch,
            epochs=case.epochs,
            validation_data=data.val,
            shuffle=case.shuffle,
            verbose=0,
            **data.weights,
        ).history
        seen |= {f"history {round}, {name}": values for name, values in history.items() if name not in OURS}
        seen |= everything(model, f"after fit {round}")
        if strategy is not None:
            assert_copies_equal_to_the_bit(model, strategy.num_replicas_in_sync)
    results = model.evaluate(*data.val, batch_size=case.batch, verbose=0, return_dict=True)
    seen |= {f"evaluate, {name}": value for name, value in results.items()}
    if case.predicts:
        outputs = keras.tree.flatten(model.predict(data.val[0], batch_size=case.batch, verbose=0))
        seen |= {f"prediction {i}": output for i, output in enumerate(outputs)}
    return {name: np.asarray(value) for name, value in seen.items()}


@functools.cache
def oracle(name: str) -> dict[str, np.ndarray]:
    """A case of the table on one device, by plain Keras."""
    return train(CASES[name])


def variables(model: keras.Model) -> list[tuple[str, keras.Variable]]:
    """Weights, own variables, optimizer slots and metric state, each with a name of its own."""
    kinds = {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return [(f"{kind} {i}, {v.path}", v) for kind, part in kinds.items() for i, v in enumerate(part)]


def everything(model: keras.Model, when: str) -> dict[str, np.ndarray]:
    """The value of each variable by name."""
    return {f"{when}: {name}": np.asarray(variable.value) for name, variable in variables(model)}


def assert_equal(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Same names, same shapes, and no element further apart than `tolerance * max(1, |wanted|)`."""
    assert found.keys() == wanted.keys()
    apart = {}
    for name, value in wanted.items():
        a, b = np.asarray(value, "float64"), np.asarray(found[name], "float64")
        assert a.shape == b.shape, f"{name}: {a.shape} on one device, {b.shape} under the strategy"
        assert np.isfinite(a).all(), f"{name}: not finite on one device"
        gap = float((np.abs(a - b) / np.maximum(1, np.abs(a))).max(initial=0))
        if not gap <= tolerance:
            apart[name] = gap
    worst = "\n".join(
        f"  {gap:.1e}  {name}" for name, gap in sorted(apart.items(), key=lambda item: -item[1])[:12]
    )
    assert not apart, f"{len(apart)} of {len(wanted)} differ by more than {tolerance:.0e}:\n{worst}"


def assert_copies_equal_to_the_bit(model: keras.Model, count: int) -> None:
    """Each replica holds each variable whole, and all hold the same bits."""
    for name, variable in variables(model):
        copies = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        assert len(copies) == count, f"{name} has {len(copies)} copies for {count} replicas"
        assert {copy.shape for copy in copies} == {tuple(variable.shape)}, name
        assert len({copy.tobytes() for copy in copies}) == 1, f"{name} differs between replicas"
