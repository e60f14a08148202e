"""A wheel of the product works outside the checkout, with templates, static files and data."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.platform.conftest import ROOT

SHIPPED = "planner/shipped/"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", str(ROOT))
    (built,) = folder.glob("headroom-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``headroom`` in an environment of its own, which has the checkout's packages."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith("-packages")]
    (packages / "packages.pth").write_text("\n".join(others))
    install = ("install", "--no-deps", "--no-index", "--no-compile", str(wheel))
    pip("--python", str(venv / "bin" / "python"), *install)
    return venv / "bin" / "headroom"


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def headroom(command: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder``, with a home that its tests share: it keeps the database."""
    settings = (
        "HEADROOM_",
        "DATABASE_URL",
        "REDIS_URL",
        "SECRET_KEY",
        "DJANGO_",
        "NUMBA_",
        "PYTHON",
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(settings)}
    return subprocess.run(
        [command, *arguments], cwd=folder, capture_output=True, text=True, timeout=600,
        env=environment | {"HOME": str(home_of(command)), "XDG_DATA_HOME": ""},
    )  # fmt: skip


def home_of(command: Path) -> Path:
    return command.parents[2]


def test_three_arguments_give_a_first_answer(installed: Path, tmp_path: Path) -> None:
    arguments = ("--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--users", "500", "--json")
    done = headroom(installed, tmp_path, "quick-size", *arguments)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["gpus"] == answer["replicas"] * answer["tp"] > 0
    assert (home_of(installed) / ".local/share/headroom/headroom.sqlite3").is_file()
    assert list(tmp_path.iterdir()) == []


def test_the_product_starts_and_checks_itself(installed: Path, tmp_path: Path) -> None:
    """Without the demo, whose plan takes minutes; test_serve checks it in the checkout."""
    done = headroom(installed, tmp_path, "run", "--check", "--no-demo")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_has_all_files_and_nothing_else(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "forecasting", "simulation", "planner", "templates", "static"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    top = ("templates/", "static/")
    wanted = {SHIPPED + name if name.startswith(top) else name for name in tracked}
    documents = [SHIPPED + name for name in named_documents()]
    assert documents
    assert held >= wanted
    assert [file for file in documents if not any(name.startswith(file) for name in held)] == []
    assert not {name for name in held if name.startswith(("tests/", "bench/", "tools/"))}


def named_documents() -> set[str]:
    """Documents and folders of documents that the product reads."""
    return {
        "/".join(re.findall(r'"([^"]+)"', parts))
        for path in (ROOT / "planner").rglob("*.py")
        for parts in re.findall(r'BASE_DIR((?: / "[^"]+")+)', path.read_text(encoding="utf-8"))
        if '"docs"' in parts
    }
