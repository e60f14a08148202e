"""The compilation cache must notice an edit in any file that an entry point calls into."""

import ast
import inspect
import sys
from functools import cache
from pathlib import Path

from numba.core.dispatcher import Dispatcher

from simulation import compiled
from simulation.compiled import source_stamp
from simulation.engine import entry


def test_stamp_follows_every_source(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "HERE", tmp_path)
    (tmp_path / "inner").mkdir()
    first, second = tmp_path / "first.py", tmp_path / "inner" / "second.py"
    first.write_text("x = 1\n")
    second.write_text("y = 1\n")
    before = source_stamp("first.py", "inner/*.py")
    assert before == source_stamp("first.py", "inner/*.py")
    second.write_text("y = 2  # edited\n")
    assert before != source_stamp("first.py", "inner/*.py")
    assert source_stamp("first.py") != source_stamp("inner/*.py")


def test_stamp_of_the_engine_misses_no_source_of_code_or_of_constants():
    stamped = {file for pattern in entry.SOURCES for file in compiled.HERE.glob(pattern)}
    reached = set()
    for name in ("advance", "place", "scale", "speed", "limit", "fault", "tend", "observe"):
        sources(getattr(entry, name).py_func, reached, set())
    assert {file.name for file in reached} > {"loop.py", "curves.py", "faults.py", "results.py"}
    assert reached <= stamped


def sources(function, reached, seen):
    """Files of what a compiled function calls and of the names that it reads, into ``reached``."""
    if function in seen:
        return
    seen.add(function)
    module = sys.modules[function.__module__]
    reached.add(Path(module.__file__))
    origins = imported(module)
    for name in function.__code__.co_names:
        if name in origins and origins[name].__name__.startswith("simulation."):
            reached.add(Path(origins[name].__file__))
        value = function.__globals__.get(name)
        if isinstance(value, Dispatcher):
            sources(value.py_func, reached, seen)


@cache
def imported(module):
    """Where the names come from that a module takes from others."""
    return {
        alias.asname or alias.name: sys.modules[statement.module]
        for statement in ast.parse(inspect.getsource(module)).body
        if isinstance(statement, ast.ImportFrom) and statement.module in sys.modules
        for alias in statement.names
    }
