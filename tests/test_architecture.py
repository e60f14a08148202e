"""Imports go one way and the core is pure: from the sources, and in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WEB = ("django", "rest_framework", "drf_spectacular", "celery", "kombu", "gunicorn", "whitenoise")
APPLICATION = tuple(
    f"planner.{part}"
    for part in (
        "api",
        "config",
        "demo",
        "exports",
        "management",
        "models",
        "selectors",
        "services",
        "storage",
        "tasks",
        "web",
    )
)
# Package: what it must not import.
FORBIDDEN = {
    "forecasting": (*WEB, "planner", "simulation"),
    "simulation": (*WEB, "planner", "forecasting"),
    "planner/optimizer": (*WEB, *APPLICATION),
    "planner/ingest": (*WEB, *APPLICATION),
    "planner/studies": (*WEB, *APPLICATION),
    "planner/scenario": (*WEB, *APPLICATION),
    "planner/catalogue": (*WEB, *APPLICATION),
}
# No files, output, exits, clock (durations by time.perf_counter are fine) nor environment.
CORE = ("forecasting", "simulation", "planner/optimizer")
IMPURE_NAMES = {"print", "open", "input", "exit", "quit", "breakpoint"}
IMPURE_ATTRIBUTES = {
    "os": {"environ", "getenv", "system", "urandom", "_exit"},
    "sys": {"exit", "argv", "stdout", "stderr", "stdin"},
    "time": {"time", "time_ns", "localtime", "gmtime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "random": {"seed", "random", "randint", "choice", "shuffle", "uniform", "gauss"},
}
# numpy's generators are passed around; its hidden global one is not used.
GLOBAL_RANDOM = {"seed", "rand", "randn", "random", "randint", "choice", "shuffle", "normal"}


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"{package} has no sources"
    return found


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, also inside functions."""
    module = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def impurities(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of what touches the world outside, or state hidden from the caller."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in IMPURE_NAMES:
                yield node.lineno, node.func.id
        elif isinstance(node, ast.Global):
            yield node.lineno, f"global {', '.join(node.names)}"
        elif isinstance(node, ast.ImportFrom):
            hidden = IMPURE_ATTRIBUTES.get(node.module or "", set())
            yield from (
                (node.lineno, f"{node.module}.{alias.name}")
                for alias in node.names
                if alias.name in hidden
            )
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner in ("np.random", "numpy.random"):
                hidden = GLOBAL_RANDOM
            else:
                hidden = IMPURE_ATTRIBUTES.get(owner.rpartition(".")[2], set())
            if node.attr in hidden:
                yield node.lineno, f"{owner}.{node.attr}"


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imported(path)
        if within(name, FORBIDDEN[package])
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", CORE)
def test_the_core_is_pure(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} uses {name}"
        for path in sources(package)
        for line, name in impurities(path)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_fresh_interpreter_loads_no_web_package(package: str) -> None:
    """Also catches what a dependency or a lazy import would bring in on importing."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources(package)
    ]
    forbidden = FORBIDDEN[package]
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([m for m in sys.modules for f in {forbidden!r} if m == f or m.startswith(f + '.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("print(1)", "print"),
        ("import time\ntime.time()", "time.time"),
        ("from time import time", "time.time"),
        ("import os\nos.environ['A']", "os.environ"),
        ("from datetime import datetime\ndatetime.now()", "datetime.now"),
        ("import numpy as np\nnp.random.seed(1)", "np.random.seed"),
        ("def f():\n    global x", "global x"),
    ],
)
def test_the_purity_test_sees_what_it_should(tmp_path: Path, text: str, found: str) -> None:
    source = tmp_path / "source.py"
    source.write_text(text)
    assert [name for _, name in impurities(source)] == [found]


def test_the_purity_test_lets_pass_what_it_should(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import time\nimport numpy as np\n"
        "started = time.perf_counter()\nrng = np.random.default_rng(1)\nrng.random(3)\n"
    )
    assert not list(impurities(source))
