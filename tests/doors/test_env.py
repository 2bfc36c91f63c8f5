"""The environment door."""

from phalanx.host import env

NAME = "PHALANX_TEST_OF_THE_ENVIRONMENT"


def test_reading_makes_no_difference_between_unset_and_empty(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    assert env.read(NAME) is None
    monkeypatch.setenv(NAME, "")
    assert env.read(NAME) is None
    monkeypatch.setenv(NAME, "x\ny")
    assert env.read(NAME) == "x\ny"


def test_a_default_is_set_only_where_the_user_set_nothing(monkeypatch):
    monkeypatch.setenv(NAME, "")
    assert env.set_default(NAME, "ours") == env.read(NAME) == "ours"
    assert env.set_default(NAME, "other") == env.read(NAME) == "ours"


def test_a_snapshot_is_a_copy(monkeypatch):
    monkeypatch.setenv(NAME, "here")
    copy = env.snapshot()
    assert copy[NAME] == "here"
    copy[NAME] = "changed"
    assert env.read(NAME) == "here"
