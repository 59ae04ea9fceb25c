"""The examples in docstrings and in the README print what they say."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import fa_numba

ROOT = Path(__file__).parent.parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names():
    """Every module of ours; ``__main__`` is for running, not for importing."""
    names = (m.name for m in pkgutil.walk_packages(fa_numba.__path__, "fa_numba."))
    return [name for name in names if not name.endswith(".__main__")]


@pytest.mark.parametrize("name", module_names())
def test_examples_of_a_module(name, capsys):
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.failed == 0, capsys.readouterr().out


def test_examples_of_the_readme(capsys):
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=OPTIONS)
    assert result.attempted > 5
    assert result.failed == 0, capsys.readouterr().out


def test_every_name_in_all_exists():
    for name in module_names():
        module = importlib.import_module(name)
        missing = [n for n in getattr(module, "__all__", []) if not hasattr(module, n)]
        assert missing == [], name
