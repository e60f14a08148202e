"""Carry out recipes of CONTRIBUTING on toys, in one copy of the tree."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Not what Python compiled, which goes by a file's time and size; only what it is just writing.
LEFT_OUT = (
    ".git",
    ".venv",
    "var",
    "shared",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "*.pyc.*",
)
COMPILED = ("simulation", "planner")
CARRY_OUT = """
import contextlib, io, json, os, sys, traceback
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
import django
django.setup()
printed = {}
for name, script in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(compile(script, name, "exec"), {"__name__": name})
        except BaseException:
            traceback.print_exc(file=out)
    printed[name] = out.getvalue()
print(json.dumps(printed))
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a newcomer does by one recipe, and what a script then prints."""

    script: str
    prints: str
    files: Mapping[str, str] = field(default_factory=dict)  # new ones
    patches: tuple[tuple[str, str, str], ...] = ()  # file, the text that it has once, the new text
    pages: tuple[str, ...] = ()  # generated files of docs that change
    tests: tuple[str, ...] = ()  # files that need no database


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the repository in which recipes are carried out."""

    root: Path

    def follow(self, recipe: Recipe) -> None:
        """Make the changes of ``recipe``."""
        for path, text in recipe.files.items():
            target = self.root / path
            assert not target.exists(), f"{path} is there already"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        for path, old, new in recipe.patches:
            target = self.root / path
            text = target.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times, not once"
            target.write_text(text.replace(old, new), encoding="utf-8")

    def write_pages(self, pages: Iterable[str]) -> None:
        """Write the generated pages of docs; each of ``pages`` has to change."""
        before = {page: (self.root / "docs" / page).read_bytes() for page in pages}
        self._python(["-m", "tools.docs"])
        for page, text in before.items():
            assert (self.root / "docs" / page).read_bytes() != text, f"{page} is as before"

    def printed(self, scripts: Mapping[str, str]) -> dict[str, str]:
        """Return what each script prints, with its traceback where it fails."""
        printed: dict[str, str] = json.loads(self._python(["-c", CARRY_OUT], scripts))
        return printed

    def test(self, paths: Iterable[str]) -> None:
        """Run tests of the copy that need no database."""
        plain = ("-p", "no:django", "-p", "no:cacheprovider", "-W", "ignore", "--noconftest")
        self._python(["-m", "pytest", *plain, *paths])

    def _python(self, arguments: list[str], given: object = None) -> str:
        settings = {
            "NUMBA_CACHE_DIR": str(self.root / "var" / "numba"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
            | settings,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def copy_of_the_tree(folder: Path) -> Tree:
    """The repository without its history, environment and data, but with what was compiled of it:
    the copy replays requests at once where the tree would."""
    root = folder / "tree"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT))
    _share_compiled(ROOT, root)
    return Tree(root)


def _share_compiled(source: Path, target: Path) -> None:
    """Numba keeps what it compiles in folders named by a hash of where the source lies."""
    compiled = Path(os.environ.get("NUMBA_CACHE_DIR", source / "var" / "numba"))
    for package in {path.parent for top in COMPILED for path in (source / top).rglob("*.py")}:
        folder = compiled / _cache_name(package)
        if folder.is_dir():
            there = target / package.relative_to(source)
            shutil.copytree(folder, target / "var" / "numba" / _cache_name(there))


def _cache_name(folder: Path) -> str:
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"
