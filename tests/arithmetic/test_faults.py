"""Scripts of faults: drawn from a seed, written as text, read back with care."""

import json

import pytest

from phalanx.errors import SettingError
from phalanx.testing.faults import ANYWHERE, KINDS, Script, parse, random_faults


def test_a_script_survives_its_own_text():
    script = Script(random_faults(3, 9, workers=2, steps=100, kinds=list(KINDS)), "/notes", "/backups")
    assert parse(script.to_json()) == script


def test_the_same_seed_draws_the_same_faults_and_another_one_others():
    def draw(seed):
        return random_faults(seed, 40, workers=3, steps=500)

    assert draw(1) == draw(1) != draw(2)
    steps = [each.step for each in draw(1)]
    assert steps == sorted(set(steps)) and 1 <= steps[0] and steps[-1] < 500
    assert {each.worker for each in draw(1)} == {0, 1, 2}
    assert {each.what for each in draw(1)} <= set(ANYWHERE)
    assert {each.worker for each in draw(1) if each.what == "kill saving"} == {0}


def test_every_kind_is_drawn_sooner_or_later():
    assert {each.what for each in random_faults(0, 300, workers=2, steps=1000)} == set(ANYWHERE)


GOOD = {"faults": [[1, 20, "kill"]], "notes": "/notes", "backups": "/backups"}


@pytest.mark.parametrize(
    "change",
    [
        {"faults": [[1, 20, "explode"]]},
        {"faults": [[-1, 20, "kill"]]},
        {"faults": [[1, 2.5, "kill"]]},
        {"faults": [[1, True, "kill"]]},
        {"faults": [[1, 20]]},
        {"faults": [[1, 20, "kill saving"]]},
        {"faults": {"1": "kill"}},
        {"faults": [[0, 1, "kill"]] * 10_001},
        {"notes": ""},
        {"notes": None},
        {"backups": 3},
        {"more": 1},
    ],
)
def test_a_text_that_is_no_script_is_refused_by_its_rule(change):
    with pytest.raises(SettingError, match="A fault is a worker, a step and one of 'kill'"):
        parse(json.dumps(GOOD | change))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "{", "[" * 100_000, "3", '"kill"'])
def test_text_of_another_kind_is_refused_too(text):
    with pytest.raises(SettingError, match="A fault is"):
        parse(text)


@pytest.mark.parametrize(
    "wrong", [{"count": -1}, {"count": 10, "steps": 10}, {"workers": 0}, {"kinds": []}, {"kinds": ["fire"]}]
)
def test_faults_that_cannot_be_drawn_are_refused(wrong):
    with pytest.raises(SettingError):
        random_faults(**({"seed": 0, "count": 2, "workers": 2, "steps": 10} | wrong))
