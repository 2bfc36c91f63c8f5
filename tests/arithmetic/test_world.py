"""Who takes part: numbers that fit each other, or an error that quotes them."""

import dataclasses

import pytest

from phalanx import SettingError
from phalanx.world import World


def test_a_world_of_one_is_the_default():
    world = World()
    assert (world.processes, world.process, world.replicas_per_process, world.replicas) == (1, 0, 1, 1)


@pytest.mark.parametrize("processes, each, replicas", [(1, 8, 8), (2, 2, 4), (3, 1, 3), (4, 8, 32)])
def test_replicas_are_those_of_all_processes(processes, each, replicas):
    assert World(processes=processes, replicas_per_process=each).replicas == replicas


@pytest.mark.parametrize("process", [0, 1, 2])
def test_every_process_of_three_may_be_this_one(process):
    assert World(processes=3, process=process).process == process


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 0},
        {"processes": -1},
        {"replicas_per_process": 0},
        {"process": 1},
        {"process": -1},
        {"processes": 2, "process": 2},
    ],
)
def test_numbers_that_do_not_fit_are_quoted(wrong):
    with pytest.raises(SettingError) as error:
        World(**wrong)
    for name, value in wrong.items():
        assert f"{name}={value}" in str(error.value)
    assert "next:     World(" in str(error.value)


def test_a_world_is_a_value():
    assert World(replicas_per_process=2) == World(replicas_per_process=2) != World(replicas_per_process=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        World().processes = 2
    with pytest.raises(TypeError):
        World(2)
