"""A skipped step leaves no trace, whatever step it was; without Keras."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.finite_step import Scaling, guard, no_counts


def plain_step(state, batch, rows):
    """Sums its batch into a weight, a moving value, a seed and a metric; halves its scale on anything infinite."""
    (weight,), (moving, seed), (scale,), (total, count) = state
    value = jnp.sum(batch)
    finite = jnp.isfinite(value)
    state = (
        [jnp.where(finite, weight + value, weight)],
        [0.5 * moving + 0.5 * value, seed + 1],
        [jnp.where(finite, scale, scale / 2)],
        [total + value, count + 1],
    )
    return {"loss": (total + value) / (count + 1), "batch": value}, state


def results(metrics):
    total, count = metrics
    return {"loss": total / jnp.maximum(count, 1), "unlogged": total}


@pytest.fixture(scope="module")
def run():
    step = jax.jit(
        guard(plain_step, Scaling(scale=0, goes_on=[False, True], results=results)), static_argnums=3
    )

    def run(*batches):
        state = (
            [jnp.zeros(())],
            [jnp.zeros(()), jnp.zeros((), jnp.int32)],
            [jnp.array(8.0)],
            [jnp.zeros(())] * 2,
        )
        counts, logs = no_counts(), []
        for batch in batches:
            each, state, counts = step(state, counts, jnp.asarray(batch, jnp.float32), None)
            logs.append({name: float(value) for name, value in each.items()})
        return logs, [[float(value) for value in part] for part in state]

    return run


def test_a_skipped_step_changes_the_scale_and_the_seed_and_nothing_else(run):
    logs, (weight, moving, scale, metrics) = run([2.0], [np.inf], [4.0])
    assert [each["loss"] for each in logs] == [2.0, 2.0, 3.0]
    assert [each["skipped_steps"] for each in logs] == [0, 1, 1]
    assert [each["loss_scale"] for each in logs] == [8, 4, 4]
    assert weight == [6.0] and metrics == [6.0, 2.0] and scale == [4.0]
    assert moving == [0.5 * 1.0 + 0.5 * 4.0, 3.0], "the moving value skips, the seed goes on"


def test_finite_steps_are_what_they_would_be_without_the_guard(run):
    logs, state = run([1.0, 2.0], [3.0])
    wanted, bare = [], ([jnp.zeros(())], [jnp.zeros(()), 0], [jnp.array(8.0)], [jnp.zeros(())] * 2)
    for batch in ([1.0, 2.0], [3.0]):
        each, bare = plain_step(bare, jnp.array(batch), None)
        wanted.append(each)
    assert [each["loss"] for each in logs] == [float(each["loss"]) for each in wanted]
    assert state == [[float(value) for value in part] for part in bare]


def test_before_the_first_finite_step_the_logs_are_the_skipped_steps_own(run):
    logs, (*_, metrics) = run([np.inf], [np.nan], [2.0])
    assert not np.isfinite([logs[0]["loss"], logs[1]["loss"]]).any(), "zero would look like a perfect model"
    assert logs[2]["loss"] == 2.0 and logs[2]["skipped_steps"] == 2 and metrics == [2.0, 1.0]


def test_entries_that_are_no_metric_stay_as_the_step_gave_them(run):
    logs, _ = run([2.0], [np.inf])
    assert logs[1]["batch"] == np.inf and "unlogged" not in logs[1]


def test_logs_that_are_no_mapping_are_left_alone():
    step = guard(
        lambda state, batch, rows: (batch, state), Scaling(scale=0, goes_on=[], results=lambda metrics: {})
    )
    state = [], [], [jnp.array(8.0)], []
    logs, *_ = step(state, no_counts(), jnp.array(3.0), None)
    assert float(logs) == 3.0
