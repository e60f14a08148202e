"""docker/Dockerfile copies all that the product needs; `bench.image` carries out its steps."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.platform.conftest import ROOT


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's /app, with what COPY puts there from the checkout."""
    folder = tmp_path_factory.mktemp("image") / "app"
    folder.mkdir()
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M):
        *sources, to = line.split()
        for source in sources:
            path, target = ROOT / source, folder / to
            if path.is_dir():
                leave_out = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, target, dirs_exist_ok=True, ignore=leave_out)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / path.name if to.endswith("/") else target)
    return folder


def test_the_image_imports_every_page_and_passes_every_check_behind_https(
    app: Path, embedded: dict[str, str], tmp_path: Path
) -> None:
    behind = {"HEADROOM_HTTPS": "1", "HEADROOM_ALLOWED_HOSTS": "headroom.example"}
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=app, capture_output=True, text=True, timeout=300,
        env=embedded | behind | {"HEADROOM_DATA_DIR": str(tmp_path / "data")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_image_has_the_files_that_code_reads(app: Path) -> None:
    wanted = {
        "/".join(re.findall(r'"([^"]+)"', parts))
        for path in (ROOT / "planner").rglob("*.py")
        for parts in re.findall(r'BASE_DIR((?: / "[^"]+")+)', path.read_text(encoding="utf-8"))
    }
    assert wanted
    assert [name for name in wanted if not (app / name).exists()] == []


def test_the_entry_point_is_a_program_of_the_image(app: Path, tmp_path: Path) -> None:
    """It copies compiled code to where more can be added, once, and becomes the command."""
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    (entry,) = re.findall(r'^ENTRYPOINT \["/app/(\w+)"\]$', text, re.M)
    program = app / entry
    assert program.stat().st_mode & 0o111
    shipped, cache = tmp_path / "shipped", tmp_path / "cache"
    shipped.mkdir()
    (shipped / "a").write_text("compiled")
    script = program.read_text(encoding="utf-8").replace("/app/compiled", str(shipped))
    for _ in range(2):
        done = subprocess.run(
            ["/bin/sh", "-c", script, "start", "echo", "a  b", "c"], capture_output=True, text=True,
            env={"NUMBA_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "a  b c\n", "")
        assert [path.name for path in cache.iterdir()] == ["a"]
