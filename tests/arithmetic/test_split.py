"""Rows to replicas: nothing lost, nothing twice, at most one replica short."""

import itertools

import numpy as np
import pytest

from phalanx import SettingError
from phalanx.split import padded_rows, rows_each, rows_per_replica

EVERY = list(itertools.product([*range(70), 128, 1000, 1001], [1, 2, 3, 4, 7, 8, 64]))


@pytest.mark.parametrize(
    "rows, replicas, shares",
    [
        (32, 4, (8, 8, 8, 8)),
        (70, 4, (18, 18, 18, 16)),
        (67, 8, (9, 9, 9, 9, 9, 9, 9, 4)),
        (37, 4, (10, 10, 10, 7)),
        (5, 4, (2, 2, 1, 0)),
        (3, 4, (1, 1, 1, 0)),
        (1, 8, (1, 0, 0, 0, 0, 0, 0, 0)),
        (0, 2, (0, 0)),
        (9, 1, (9,)),
    ],
)
def test_shares_as_tf_distribute_cuts_them(rows, replicas, shares):
    assert rows_per_replica(rows, replicas) == shares


def test_shares_sum_to_the_rows_for_every_size():
    for rows, replicas in EVERY:
        shares = rows_per_replica(rows, replicas)
        assert len(shares) == replicas and sum(shares) == rows, (rows, replicas)


def test_full_shares_come_first_then_at_most_one_short_one_then_empty_ones():
    for rows, replicas in EVERY:
        shares, full = rows_per_replica(rows, replicas), rows_each(rows, replicas)
        assert list(shares) == sorted(shares, reverse=True), (rows, replicas)
        assert len([share for share in shares if 0 < share < full]) <= 1, (rows, replicas)
        assert max(shares) == full, (rows, replicas)


def test_padding_makes_equal_parts_and_is_never_a_whole_replica_of_a_full_batch():
    for rows, replicas in EVERY:
        padded, full = padded_rows(rows, replicas), rows_each(rows, replicas)
        assert padded == full * replicas >= rows, (rows, replicas)
        assert padded - rows < replicas, (rows, replicas)


def test_cutting_padded_equal_parts_gives_each_replica_its_run_of_rows():
    for rows, replicas in EVERY:
        padded, full = padded_rows(rows, replicas), rows_each(rows, replicas)
        marked = np.where(np.arange(padded) < rows, np.arange(padded), -1)
        parts = [part[part >= 0] for part in marked.reshape(replicas, full)]
        assert tuple(map(len, parts)) == rows_per_replica(rows, replicas)
        assert np.concatenate(parts).tolist() == list(range(rows))


@pytest.mark.parametrize("rows, replicas", [(-1, 4), (4, 0), (4, -2)])
@pytest.mark.parametrize("function", [rows_each, padded_rows, rows_per_replica])
def test_impossible_numbers_are_quoted(function, rows, replicas):
    with pytest.raises(SettingError, match=f"received: rows={rows}, replicas={replicas}"):
        function(rows, replicas)
