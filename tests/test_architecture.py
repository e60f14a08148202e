"""Imports go one way and in no circle, and the core is pure: from the sources, and in a fresh
interpreter."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WEB = ("django", "rest_framework", "drf_spectacular", "celery", "kombu", "gunicorn", "whitenoise")
APPLICATION = tuple(
    f"planner.{part}"
    for part in (
        "api",
        "config",
        "management",
        "models",
        "outputs",
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
    "planner/files": (*WEB, *APPLICATION),
    "planner/inputs": (*WEB, *APPLICATION),
    "planner/policies": (*WEB, *APPLICATION),
    "planner/domain": (*WEB, *APPLICATION),
}
# What must have no circle, imports for type checkers and inside functions counted.
PRODUCT = ("forecasting", "simulation", "planner", "bench", "tools")
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
HIDDEN = GLOBAL_RANDOM.union(*IMPURE_ATTRIBUTES.values())


def sources(package: str) -> list[Path]:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths, f"{package} has no sources"
    return paths


@cache
def imported(path: Path, root: Path) -> tuple[tuple[int, str], ...]:
    """Return line and full name of everything a file imports, also inside functions."""
    return tuple(_imports(path, path.relative_to(root).with_suffix("").parts))


def _imports(path: Path, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def module_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def import_graph(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    """Module: the modules among ``packages`` that it imports."""
    paths = {
        module_of(path, root): path
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
    }
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        graph[module] = set()
        for _, name in imported(path, root):
            target = name if name in paths else name.rpartition(".")[0]  # a name in a module
            if target in paths and target != module:
                graph[module].add(target)
    return graph


def circles(graph: Mapping[str, set[str]]) -> Iterator[str]:
    """For every folder whose files and folders, each taken as one, import each other in a circle:
    the circle. So a package stands above or below its neighbours as a whole."""
    folders = {module.rpartition(".")[0] for module in graph}
    folders |= {".".join(f.split(".")[:i]) for f in folders for i in range(f.count(".") + 1)}
    for folder in sorted(folders):
        children: dict[str, set[str]] = defaultdict(set)
        for importer, targets in graph.items():
            for target in targets:
                pair = [child_of(folder, module) for module in (importer, target)]
                if None not in pair and pair[0] != pair[1]:
                    children[pair[0]].add(pair[1])
        try:
            TopologicalSorter(children).prepare()
        except CycleError as circle:
            yield f"{folder or 'top'}: {' <- '.join(circle.args[1])}"


def child_of(folder: str, module: str) -> str | None:
    """What of ``folder`` a module is in; None outside it, and for the folder's own __init__."""
    inside = module if not folder else module.removeprefix(f"{folder}.")
    return inside.split(".")[0] if not folder or inside != module else None


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
        elif isinstance(node, ast.Attribute) and node.attr in HIDDEN:
            owner = ast.unparse(node.value)
            if owner in ("np.random", "numpy.random"):
                hidden = GLOBAL_RANDOM
            else:
                hidden = IMPURE_ATTRIBUTES.get(owner.rpartition(".")[2], set())
            if node.attr in hidden:
                yield node.lineno, f"{owner}.{node.attr}"


def test_every_imported_name_is_in_the_module_that_it_is_imported_from() -> None:
    """The type checker ignores a missing module, which may also be a library without types."""
    packages = (*PRODUCT, "tests")
    paths = {module_of(path, ROOT): path for package in packages for path in sources(package)}
    words = {
        module: {"*", *re.findall(r"\w+", path.read_text(encoding="utf-8"))}
        for module, path in paths.items()
    }
    lost = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths.values()
        for line, name in imported(path, ROOT)
        for module, _, last in [name.rpartition(".")]
        if name.partition(".")[0] in packages
        and name not in paths
        and last not in words.get(module, ())
    ]
    assert not lost


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imported(path, ROOT)
        if within(name, FORBIDDEN[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_imported_in_a_circle() -> None:
    wrong = list(circles(import_graph(ROOT, PRODUCT)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("files", "folder"),
    [
        ({"p/a.py": "from p import b", "p/b.py": "import p.a"}, "p"),
        ({"p/a.py": "from p.b import x", "p/b.py": "def f():\n    from p.a import y"}, "p"),
        (
            {
                "p/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.b",
                "p/b.py": "import p.a",
            },
            "p",
        ),
        # no circle of modules, but of the folders they are in
        ({"p/q/a.py": "import p.r.b", "p/r/b.py": "", "p/r/c.py": "import p.q.a"}, "p"),
        ({"p/q/a.py": "from . import b", "p/q/b.py": "from .a import x"}, "p.q"),
        ({"p/a.py": "import q.b", "q/b.py": "", "q/c.py": "import p.a"}, "top"),
        ({"p/a.py": "import p.b, p.q.c", "p/b.py": "import p.q.c", "p/q/c.py": ""}, None),
    ],
)
def test_circles_are_found(tmp_path: Path, files: dict[str, str], folder: str | None) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    seen = [circle.partition(":")[0] for circle in circles(import_graph(tmp_path, ("p", "q")))]
    assert seen == ([] if folder is None else [folder])


@pytest.mark.parametrize("package", CORE)
def test_the_core_is_pure(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} uses {name}"
        for path in sources(package)
        for line, name in impurities(path)
    ]
    assert not wrong, "\n".join(wrong)


def printed(script: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("forbidden", dict.fromkeys(FORBIDDEN.values()), ids=lambda its: its[-1])
def test_a_fresh_interpreter_loads_no_web_package(forbidden: tuple[str, ...]) -> None:
    """Also catches what a dependency or a lazy import would bring in on importing. Packages that
    must not import the same load none of it together if each loads none."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package, its in FORBIDDEN.items()
        if its == forbidden
        for path in sources(package)
    ]
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([m for m in sys.modules for f in {forbidden!r} if m == f or m.startswith(f + '.')])"
    )
    assert printed(script) == "[]"


def test_domain_loads_slow_packages_only_where_it_computes_with_them() -> None:
    """Each takes a tenth of a second or more, at the start of every command and server."""
    slow = ("pandas", "plotly", "scipy.optimize", "scipy.special", "scipy.stats", "statsmodels")
    script = (
        "import sys; from planner.domain.reports.registry import REPORTS; dict(REPORTS)\n"
        f"print([name for name in {slow!r} if name in sys.modules])"
    )
    assert printed(script) == "[]"


@pytest.mark.parametrize(
    ("text", "names"),
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
def test_the_purity_test_sees_what_it_should(tmp_path: Path, text: str, names: str) -> None:
    source = tmp_path / "source.py"
    source.write_text(text)
    assert [name for _, name in impurities(source)] == [names]


def test_the_purity_test_lets_pass_what_it_should(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import time\nimport numpy as np\n"
        "started = time.perf_counter()\nrng = np.random.default_rng(1)\nrng.random(3)\n"
    )
    assert not list(impurities(source))
