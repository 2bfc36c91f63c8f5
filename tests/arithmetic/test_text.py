"""Tables."""

import pytest

from phalanx.text import table


def test_columns_line_up_and_no_line_ends_in_blanks():
    text = table(("name", "n"), [("a", 10), ("longer", 2)], align="lr")
    assert text == "name     n\na       10\nlonger   2"
    assert table(("a", "b"), [("xxx", "")]) == "a    b\nxxx"


def test_a_table_without_rows_is_its_headers():
    assert table(("a", "b"), []) == "a  b"


def test_a_row_of_another_length_is_refused():
    with pytest.raises((ValueError, IndexError)):
        table(("a", "b"), [("only one",)])
    with pytest.raises(ValueError):
        table(("a",), [("one", "two")])
