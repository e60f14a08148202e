"""Recipes of CONTRIBUTING, carried out on a toy in a copy of the tree: what they name is changed
there and nowhere else, and a fresh interpreter says whether that was all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
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


@dataclass(slots=True)
class Tree:
    """A copy of the repository; ``touched`` holds the files that the recipe wrote so far."""

    root: Path
    touched: set[str] = field(default_factory=set)

    def write(self, path: str, text: str) -> None:
        """A new file."""
        target = self.root / path
        assert not target.exists(), f"{path} is there already"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        self.touched.add(path)

    def patch(self, path: str, old: str, new: str) -> None:
        """``new`` in place of ``old``, which the file has once."""
        target = self.root / path
        text = target.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times, not once"
        target.write_text(text.replace(old, new), encoding="utf-8")
        self.touched.add(path)

    def generate(self, path: str, module: str) -> None:
        """``python -m module``, which the recipe says to run, writes ``path``."""
        before = (self.root / path).read_bytes()
        self._python("-m", module)
        assert (self.root / path).read_bytes() != before, f"{module} left {path} as it was"
        self.touched.add(path)

    def run(self, script: str) -> str:
        """What ``script`` prints in the copy; where it fails, the test does with what it said."""
        return self._python("-c", script)

    def pytest(self, *arguments: str) -> str:
        """Tests of the copy that need no database."""
        plain = ("-p", "no:django", "-p", "no:cacheprovider", "-W", "ignore")
        return self._python("-m", "pytest", *plain, *arguments)

    def _python(self, *arguments: str) -> str:
        settings = {
            "NUMBA_CACHE_DIR": str(self.root / "var" / "numba"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
            | settings,
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
    for package in {path.parent for path in (source / "simulation").rglob("*.py")}:
        folder = compiled / _cache_name(package)
        if folder.is_dir():
            there = target / package.relative_to(source)
            shutil.copytree(folder, target / "var" / "numba" / _cache_name(there))


def _cache_name(folder: Path) -> str:
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"
