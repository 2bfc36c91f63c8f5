"""The doors: only host/ touches the machine, and only by name."""

import ast
from pathlib import Path

import pytest

import phalanx

PACKAGE = Path(phalanx.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "host")
EFFECTS = {"os", "subprocess", "socket", "time", "multiprocessing", "shutil", "tempfile", "pathlib", "glob"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_effects_stay_behind_the_doors(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & EFFECTS, path
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in EFFECTS, path
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "eval", "exec"), path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_stand_at_the_top_and_rooms_are_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400, "time to split: which two nouns live in it?"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [n for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom))]
            assert not inner, f"import inside {node.name}"
