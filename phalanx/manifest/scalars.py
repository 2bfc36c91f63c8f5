"""YAML in the small: trees of dicts, lists, numbers and texts, every text between double quotes.

A quoted text is never a date, a truth value or a reference, and no text can end the quotes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Tree = Mapping[str, "Tree"] | Sequence["Tree"] | str | int | bool

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def write(tree: Tree) -> str:
    """A tree as YAML that any reader of YAML 1.1 or 1.2 reads as the same tree.

    Args:
        tree: Dicts whose keys are plain words, lists, whole numbers, truth values, texts.

    Returns:
        Lines, the last one ended.

    Example:
        >>> print(write({"kind": "Job", "spec": {"args": ["a: b", 'say "hi"'], "completions": 2}}), end="")
        kind: "Job"
        spec:
          args:
          - "a: b"
          - "say \\"hi\\""
          completions: 2
    """
    return "".join(f"{line}\n" for line in _lines(tree))


def scalar(value: str | int) -> str:
    """A number, or a text between double quotes with nothing but ASCII in it.

    Example:
        >>> print(scalar("tab" + chr(9) + "é"), scalar(3), scalar(True))
        "tab\\t\\xe9" 3 true
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(map(_escape, value)) + '"'


def _escape(letter: str) -> str:
    code = ord(letter)
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if 32 <= code < 127:
        return letter
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _lines(tree: Tree) -> list[str]:
    if isinstance(tree, (str, int)):
        return [scalar(tree)]
    lines = []
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            below = _lines(value)
            if isinstance(value, (str, int)):
                lines.append(f"{key}: {below[0]}")
            else:
                inset = "  " if isinstance(value, Mapping) else ""
                lines += [f"{key}:", *(inset + line for line in below)]
        return lines
    for value in tree:
        first, *others = _lines(value)
        lines += [f"- {first}", *(f"  {line}" for line in others)]
    return lines
