"""Rows as arrays: padding them for equal parts, and cutting them back inside a compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from phalanx.rows import cut, has_rows, is_sparse, pad


@pytest.mark.parametrize(
    "column", [np.arange(6.0).reshape(3, 2), jnp.arange(3), np.array([[1], [2], [3]], "int8")]
)
def test_padding_repeats_the_last_row_and_keeps_the_kind_of_array(column):
    padded = pad(column, 2)
    assert isinstance(padded, jax.Array) == isinstance(column, jax.Array)
    assert padded.dtype == column.dtype and padded.shape == (5, *column.shape[1:])
    np.testing.assert_array_equal(padded[:3], column)
    np.testing.assert_array_equal(padded[3:], np.stack([column[2], column[2]]))


def test_padding_by_nothing_returns_the_very_array():
    column = np.ones((3, 2))
    assert pad(column, 0) is column


def test_columns_with_a_first_dim_have_rows():
    assert has_rows(np.ones(3)) and has_rows(jnp.ones((3, 2)))
    assert not has_rows(np.float32(1)) and not has_rows(3.0) and not has_rows(jnp.ones(()))


def test_sparse_arrays_are_no_columns_of_rows():
    matrix = sparse.BCOO.fromdense(jnp.eye(3))
    assert is_sparse(matrix) and not has_rows(matrix) and not is_sparse(jnp.eye(3))


def test_cutting_takes_every_column_of_a_tree_back_to_its_true_rows():
    matrix = sparse.BCOO.fromdense(jnp.eye(3))
    batch = ({"a": np.ones((4, 2)), "b": [np.ones(4), np.float32(7)]}, matrix, None)
    found = cut(batch, 3)
    assert found[0]["a"].shape == (3, 2) and found[0]["b"][0].shape == (3,)
    assert found[0]["b"][1] == 7 and found[1] is matrix and found[2] is None


def test_cutting_by_none_returns_the_very_batch():
    batch = (np.ones(4),)
    assert cut(batch, None) is batch


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_padding_and_cutting_inside_jit_is_no_change(rows):
    column = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    found = jax.jit(cut, static_argnums=1)(pad(column, 8 - rows), rows)
    np.testing.assert_array_equal(found, column)
