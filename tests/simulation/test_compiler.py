"""What is kept on disk is found again exactly while it is what would be compiled now."""

import importlib.util
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.types import NamedTuple as Given
from numba.core.types import int64

from simulation import kernel_cache
from simulation.compiler import inlined_kernel, kernel
from simulation.engine import entry_points
from simulation.engine.tables import Tables, opener
from simulation.kernel_cache import kernel_key

TOY = '''"""A module with an entry point."""
from simulation.compiler import cached_kernel, inlined_kernel, kernel

FEW, MANY, PAIR, WORD = 2, 3.0, (1, 2.0), "toy"


def plain(x):
    return x + 1


@kernel
def inner(x, more=1):
    """Called."""
    return x * MANY + more


@kernel
def unreached(x):
    return x - 1


@cached_kernel
def outer(x):
    """Called from Python."""
    return inner(x) + FEW + PAIR[0] if WORD == "toy" else 0.0
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy with one text in another's place, as a process sees it that starts now."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    path = tmp_path / "toy.py"

    def load(old="", new=""):
        assert old in TOY
        path.write_text(TOY.replace(old, new, 1) if old else TOY)
        specification = importlib.util.spec_from_file_location("toy", path)
        module = importlib.util.module_from_spec(specification)
        monkeypatch.setitem(sys.modules, "toy", module)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        return module.outer

    return load


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module with', '"""\n\nAnother module with'),
        ('    """Called."""\n', '    """Called by outer."""\n    # quite often\n'),
        ("return x + 1", "return x + 2"),
        ("return x - 1", "return x - 2"),
    ],
    ids=["docstring and lines", "comment", "plain function", "kernel that is not reached"],
)
def test_what_is_not_compiled_does_not_change_the_key(toy, old, new):
    assert kernel_key(toy()) == kernel_key(toy(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * MANY", "x + MANY"),
        ("MANY, PAIR, WORD = 2, 3.0", "MANY, PAIR, WORD = 2, 3"),
        ("(1, 2.0)", "(1, 3.0)"),
        ('"toy"', '"other"'),
        ("more=1", "more=2"),
        ("MANY + more", "MANY + more + 0"),
        ("+ FEW", "- FEW"),
    ],
)
def test_whatever_is_compiled_changes_the_key(toy, old, new):
    assert kernel_key(toy()) != kernel_key(toy(old, new))


def test_options_of_a_kernel_and_how_it_is_compiled_change_the_key(toy, tmp_path, monkeypatch):
    before = kernel_key(toy())
    assert kernel_key(toy("@kernel\ndef inner", "@inlined_kernel\ndef inner")) != before
    other = tmp_path / "other.py"
    other.write_text("# another way of compiling\n")
    monkeypatch.setattr(kernel_cache.inspect, "getfile", lambda _: str(other))
    assert kernel_key(toy()) != before


def test_what_cannot_be_told_is_refused(toy):
    entry_point = toy("(1, 2.0)", "[1, 2.0]")
    with pytest.raises(TypeError, match="outer reads PAIR, a list"):
        kernel_key(entry_point)


def test_what_was_compiled_is_found_again_and_nothing_stale(toy):
    def run(*change):
        outer = toy(*change)
        return outer(2.0), sum(outer.stats.cache_hits.values())

    assert run() == (2 * 3 + 1 + 2 + 1, 0)
    assert run('"""Called."""', '"""Called, and at another line.\n\n    """') == (10, 1)
    assert run("x * MANY", "x - MANY") == (3, 0)
    assert run("+ FEW", "- FEW") == (6, 0)
    assert run() == (10, 1)


def test_compiled_code_is_loaded_without_what_only_a_compilation_needs(tmp_path):
    (tmp_path / "summing.py").write_text(
        "import numpy as np\nfrom simulation.compiler import cached_kernel\n"
        "@cached_kernel\ndef total(values):\n"
        "    if values.size == 0:\n        raise ValueError('no values')\n"
        "    return np.sum(values) + np.sort(values)[0]\n"
    )
    script = (
        "import sys, numpy as np; from summing import total; answer = total(np.arange(1.0, 4.0))\n"
        "try: total(np.empty(0))\nexcept ValueError as error: print(error)\n"
        "print(answer, sum(total.stats.cache_hits.values()), 'scipy.linalg' in sys.modules)"
    )
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}",
    }
    said = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, check=True, capture_output=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said[0] == [b"no", b"values", b"7.0", b"0", b"True"]
    assert said[1] == [b"no", b"values", b"7.0", b"1", b"False"]


def test_types_say_what_they_are_made_of():
    pairs = [namedtuple("Pair", fields) for fields in ("a b", "b a")]
    kinds = [tuple(kernel_cache._type_contents(Given((int64,) * 2, pair))) for pair in pairs]
    assert kinds[0] != kinds[1]
    layouts = {name: {"x": (np.dtype([(name, "f8")]), 1)} for name in ("toy a", "toy b")}
    kinds = [tuple(kernel_cache._type_contents(Tables(*named))) for named in layouts.items()]
    assert kinds[0] != kinds[1]
    assert kinds[0][0] == kinds[1][0]  # the file with the type
    openers = [opener(Tables(*named)) for named in layouts.items()]
    values = [tuple(kernel_cache._compiled_parts(each, "toy", set())) for each in openers]
    assert values[0][0] == values[1][0] == kinds[0][0] and values[0][1] != values[1][1]


def test_options_of_one_kernel_are_not_those_of_all():
    """They were: what was compiled after the stations were imported was inlined throughout."""
    assert inlined_kernel(len_of).targetoptions["forceinline"]
    assert "forceinline" not in kernel(len_of).targetoptions


def len_of(x):
    return len(x)


def test_every_entry_of_the_engine_has_a_key():
    names = (
        "advance",
        "place",
        "scale",
        "set_speed",
        "limit",
        "fault",
        "route_deferred",
        "observe",
        "close",
    )
    assert len({kernel_key(getattr(entry_points, name)) for name in names}) == len(names)
    assert Path(entry_points.__file__).name == "entry_points.py"
