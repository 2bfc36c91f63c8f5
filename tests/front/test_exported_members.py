"""The front door: sorted, honest, complete."""

import phalanx


def test_all_is_sorted_honest_and_resolves():
    names = [name for name in phalanx.__all__ if not name.startswith("__")]
    assert names == sorted(names)
    assert set(names) == {*phalanx._HOME, *phalanx._MODULES}
    for name in phalanx.__all__:
        assert getattr(phalanx, name) is not None, name
