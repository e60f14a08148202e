"""bin/setup.py: a set-up that was stopped in the middle heals itself."""

import fcntl
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from planner.installation import Installation, SetUpError

ROOT = Path(__file__).parents[2]


class Machine:
    """Runs commands as a machine would that has everything, and can be stopped at one."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.commands: list[str] = []
        self.ends: dict[str, int | type[BaseException]] = {}

    def run(self, command, **_):
        words = " ".join(map(str, command))
        self.commands.append(words)
        if self.venv in Path(command[0]).parents and not Path(command[0]).exists():
            raise FileNotFoundError(command[0])
        if "-m venv" in words:
            self.venv.mkdir(exist_ok=True)
            for file in self.venv.iterdir():
                file.unlink()
            (self.venv / "python").touch()
        for part, end in self.ends.items():
            if part in words:
                if isinstance(end, int):
                    return subprocess.CompletedProcess(command, end)
                raise end
        return subprocess.CompletedProcess(command, 0)

    def count(self, part: str) -> int:
        return sum(part in command for command in self.commands)


@pytest.fixture
def set_up(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "bin" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT, module.VENV = tmp_path, tmp_path / "venv"
    module.PYTHON = module.VENV / "python"
    for name in ("requirements.txt", "constraints.txt", "requirements-dev.txt"):
        (tmp_path / name).write_text(name)
    module.machine = Machine(module.VENV)
    monkeypatch.setattr(module.subprocess, "run", module.machine.run)
    return module


def test_what_is_installed_is_not_installed_again(set_up):
    set_up.install(dev=False)
    set_up.install(dev=False)
    assert set_up.machine.count("--requirement") == 1
    assert set_up.machine.count("-m venv") == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, -9])
def test_an_install_that_was_stopped_begins_anew(set_up, end):
    """Packages may lack files and yet count as installed: the environment is made again."""
    set_up.machine.ends = {"--requirement": end}
    with pytest.raises((KeyboardInterrupt, set_up.SetUpError)):
        set_up.install(dev=False)
    set_up.machine.ends = {}
    set_up.install(dev=False)
    assert set_up.machine.count("-m venv") == 2
    set_up.install(dev=False)
    assert set_up.machine.count("--requirement") == 2


def test_worktrees_that_share_an_environment_take_turns(set_up, tmp_path, monkeypatch):
    """Another's half-done install is no stopped one: the environment was made anew under it."""
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (tmp_path / "venv").mkdir()
    (worktree / "venv").symlink_to(tmp_path / "venv")
    monkeypatch.setattr(set_up, "VENV", worktree / "venv")
    with (tmp_path / "requirements.txt").open() as lock:

        def held() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(lock, fcntl.LOCK_UN)
            return False

        seen = []
        monkeypatch.setattr(set_up.os, "chdir", lambda _: None)
        monkeypatch.setattr(set_up, "install", lambda **_: seen.append(held()))
        set_up.main("dev")
        assert seen == [True]
        assert not held()


def test_an_install_that_failed_goes_on_with_what_there_is(set_up):
    set_up.machine.ends = {"--requirement": 1}
    with pytest.raises(set_up.SetUpError, match="pip's message"):
        set_up.install(dev=False)
    set_up.machine.ends = {}
    set_up.install(dev=False)
    assert (set_up.machine.count("-m venv"), set_up.machine.count("--requirement")) == (1, 2)


def test_an_old_pip_does_where_no_newer_one_can_be_had(set_up):
    set_up.machine.ends = {"--upgrade": 1}
    set_up.install(dev=False)
    assert (set_up.machine.count("--upgrade"), set_up.machine.count("--requirement")) == (1, 1)
    (set_up.ROOT / "requirements.txt").write_text("another")
    set_up.install(dev=False)  # into what there is, with the pip that there is
    assert (set_up.machine.count("--upgrade"), set_up.machine.count("--requirement")) == (1, 2)


def test_a_step_that_was_stopped_is_done_again(set_up, tmp_path):
    set_up.install(dev=False)
    product = Installation(tmp_path, set_up.PYTHON)
    set_up.machine.ends = {"warm_up": -9}
    with pytest.raises(SetUpError, match="warm_up"):
        product.compile_simulator()
    set_up.machine.ends = {}
    product.compile_simulator()
    product.compile_simulator()
    assert set_up.machine.count("warm_up") == 2


def test_files_named_to_manage_are_those_of_the_folder_it_is_called_from(tmp_path):
    """On a toy tree, whose Python says where it was started and with what."""
    root, elsewhere = tmp_path / "headroom", tmp_path / "elsewhere"
    for folder in (root / "bin", root / ".venv" / "bin", elsewhere):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "bin" / "manage", root / "bin")
    (root / "bin" / "_setup.sh").write_text("set_up() { echo set up in $PWD; }\n")
    python = root / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    python.chmod(0o755)
    listed = subprocess.run(
        ["../headroom/bin/manage", "size", "my.yml"],
        cwd=elsewhere, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert listed.stdout.splitlines() == [
        f"set up in {root}", f"{elsewhere} {root}/manage.py size my.yml",
    ]  # fmt: skip
