"""Bring a checkout up to date: virtual environment, requirements, database, static files, caches.

Usage: setup.py run|manage|test|dev|compile. Needs only the standard library, as it runs before any
package is installed. Every step leaves a digest of what it depends on and is skipped while that is
unchanged.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
DATA_DIR = ROOT / (os.environ.get("HEADROOM_DATA_DIR", "").strip() or "var")
REFUSED = 2  # exit status of a command that has said in one sentence why it does not start


class SetUpError(Exception):
    """One sentence: what is wrong and the remedy."""


def main(kind: str) -> None:
    os.chdir(ROOT)
    if kind == "compile":  # while the rest is up and running
        compile_simulator()
        return
    with turn(VENV.resolve().parent):  # several worktrees may share one environment
        install(dev=kind in ("dev", "test"))
    with turn(ROOT):
        if kind == "run":
            prepare(web=True)
        elif kind == "manage":
            prepare(web=False)
        elif kind == "test":
            make_data_dir()
            compile_simulator()


@contextmanager
def turn(checkout: Path) -> Iterator[None]:
    """Two set-ups of one checkout take turns: one in the middle looks like one that was stopped."""
    with (checkout / "requirements.txt").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up of {checkout} to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(*, dev: bool) -> None:
    """The virtual environment with the pinned packages; those of development hold the others."""
    allowed = ["requirements-dev.txt"] if dev else ["requirements.txt", "requirements-dev.txt"]
    if PYTHON.exists() and any(fresh(*requirements_stamp(name)) for name in allowed):
        return
    stopped = VENV / "headroom-installing"  # in the middle: packages without all of their files
    anew = stopped.exists() or not succeeds(PYTHON, "-m", "pip", "--version")
    if anew:
        create_venv()
    say(f"installing {allowed[0]} (the first time: a minute or two, more to download)")
    stopped.touch()
    # Not compiled: most modules are never imported, and those that are compile in a second.
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    if anew:
        # The pip that Python brings along looks at every file of an index for a third of the time
        # that the installation takes; where no newer one can be had, it does too.
        newer = ("--upgrade", "--constraint", "constraints.txt", "--retries=0", "pip")
        succeeds(*pip, *newer)
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    run(
        "Installing the requirements failed; see pip's message above.",
        *(*pip, *quiet, "--requirement", allowed[0]),
        at_end=stopped.unlink,
    )
    stamp, wanted = requirements_stamp(allowed[0])
    stamp.write_text(wanted)


def requirements_stamp(name: str) -> tuple[Path, str]:
    files = [ROOT / file for file in ("requirements.txt", "constraints.txt", name)]
    return VENV / f"headroom-{name}.stamp", digest(files)


def create_venv() -> None:
    if not succeeds(sys.executable, "-c", "import venv, ensurepip"):
        raise SetUpError(
            f"{sys.executable} cannot make virtual environments; install its venv module "
            "(Debian and Ubuntu: the package python3-venv) and start again."
        )
    say("creating .venv")
    run(
        "Creating .venv failed; see the message above.",
        *(base_python(), "-m", "venv", "--clear", VENV),
    )


def base_python() -> str:
    """The interpreter behind this one: a broken .venv must not be rebuilt by itself."""
    return getattr(sys, "_base_executable", sys.executable)


def prepare(*, web: bool) -> None:
    """What the product keeps in its data directory."""
    make_data_dir()
    options = ["--verbosity=0", "--skip-checks"]  # checks import all pages: half of the time
    if not os.environ.get("DATABASE_URL"):
        if not (DATA_DIR / "headroom.sqlite3").exists():
            (DATA_DIR / "migrate.stamp").unlink(missing_ok=True)
        manage_step("migrate", "planner/migrations/*.py", *options)
    elif web:  # otherwise a shared database is migrated by those who look after it
        manage("migrate", *options)
    if web:
        ignored = ["widgetbundle.js", "datasets", "templates"]  # Plotly's, for notebooks
        options += ["--no-input", *(f"--ignore={name}" for name in ignored)]
        manage_step("collectstatic", "static/**/*", *options)


def make_data_dir() -> None:
    try:
        DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(DATA_DIR, os.W_OK | os.X_OK):
            raise PermissionError(0, "Not writable")
    except OSError as problem:
        print(
            f"HEADROOM_DATA_DIR: {DATA_DIR} cannot be used as a folder ({problem.strerror}). "
            "Choose a folder that this user may write, or change its owner.",
            file=sys.stderr,
        )
        sys.exit(REFUSED)


def compile_simulator() -> None:
    manage_step("warm_up", "simulation/**/*.py")


def manage_step(command: str, sources: str, *arguments: str) -> None:
    """Run a management command if the files matching ``sources`` or the packages changed."""
    files = [*sorted(ROOT.glob(sources)), ROOT / "requirements.txt", ROOT / "constraints.txt"]
    stamp = DATA_DIR / f"{command}.stamp"
    wanted = digest(files)
    if not fresh(stamp, wanted):
        say(command.replace("_", " "))
        manage(command, *arguments)
        stamp.write_text(wanted)


def manage(command: str, *arguments: str) -> None:
    failed = f"`{command}` failed; see its message above."
    run(failed, PYTHON, "manage.py", command, *arguments, refused=REFUSED)


def digest(files: Iterable[Path]) -> str:
    """Of names and contents, and of the interpreter's version."""
    total = hashlib.sha256(sys.version.encode())
    for file in files:
        if file.is_file():
            total.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return total.hexdigest()


def fresh(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def run(
    problem: str,
    *command: str | Path,
    at_end: Callable[[], None] | None = None,
    refused: int | None = None,
) -> None:
    """Run a command. ``at_end`` is for one that came to an end, well or not: nobody stopped it.
    ``refused``: the status of one that has said why itself, with which this ends too."""
    status = subprocess.run(command, check=False, stdout=sys.stderr).returncode
    if status == refused:
        sys.exit(status)
    if at_end is not None and status >= 0:
        at_end()
    if status:
        raise SetUpError(problem)


def succeeds(*command: str | Path) -> bool:
    with suppress(FileNotFoundError):
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    return False


def say(what: str) -> None:
    print(f"Headroom set-up: {what} ...", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except SetUpError as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        sys.exit("Set-up was stopped; start again to finish it.")
