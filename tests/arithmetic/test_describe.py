"""The description of a strategy: reports row 16, global / per worker / per replica."""

import pytest

from phalanx import SettingError
from phalanx.describe import Description
from phalanx.world import World


def description(processes=1, each=4, batch=None, view="global"):
    names = tuple(f"gpu:{i}" for i in range(each))
    world = World(processes=processes, replicas_per_process=each)
    return Description(strategy="MirroredStrategy", devices=names, world=world, view=view, global_batch=batch)


def lines(text):
    """The table as a dict of its rows."""
    head, *rows = text.splitlines()
    assert head.split() == ["setting", "value"]
    split = [row.split("  ") for row in rows]
    return {cells[0]: cells[-1].strip() for cells in split}


def test_a_batch_of_32_on_two_workers_with_two_replicas_is_16_and_8():
    """Reports row 16."""
    two = description(processes=2, each=2, batch=32)
    assert (two.global_batch, two.batch_per_worker, two.batch_per_replica) == (32, (16, 16), (8, 8, 8, 8))
    printed = lines(str(two))
    assert printed["batch, global"] == "32"
    assert printed["batch, per worker"] == "16"
    assert printed["batch, per replica"] == "8"


def test_a_batch_of_32_on_four_replicas_of_one_worker_is_32_and_8():
    printed = lines(str(description(batch=32)))
    assert (printed["batch, global"], printed["batch, per worker"], printed["batch, per replica"]) == (
        "32",
        "32",
        "8",
    )


def test_uneven_shares_are_all_printed():
    uneven = description(processes=2, each=2, batch=37)
    assert uneven.batch_per_worker == (20, 17)
    printed = lines(str(uneven))
    assert printed["batch, per worker"] == "20, 17"
    assert printed["batch, per replica"] == "10, 10, 10, 7"


def test_the_table_names_strategy_devices_replicas_workers_and_view():
    assert lines(str(description(view="replica"))) == {
        "strategy": "MirroredStrategy",
        "devices": "gpu:0, gpu:1, gpu:2, gpu:3",
        "replicas": "4",
        "workers": "1",
        "view": "replica",
    }


def test_without_a_batch_there_are_no_shares():
    assert description().batch_per_replica is None
    assert description().batch_per_worker is None


@pytest.mark.parametrize("batch", [0, -32, 2.5, "32", True])
def test_a_batch_that_is_no_number_of_rows_is_quoted(batch):
    with pytest.raises(SettingError) as error:
        description(batch=batch)
    assert f"global_batch={batch!r}" in str(error.value)
    assert "next:     strategy.describe(global_batch=64)" in str(error.value)


def test_shares_sum_to_the_global_batch_on_every_level():
    for batch in range(1, 70):
        for processes, each in ((1, 4), (2, 2), (3, 5), (4, 1)):
            shares = description(processes=processes, each=each, batch=batch)
            assert sum(shares.batch_per_replica) == sum(shares.batch_per_worker) == batch
            assert len(shares.batch_per_worker) == processes
