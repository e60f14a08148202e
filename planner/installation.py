"""Find the product's files, and prepare its data folder before it starts.

    python -m planner.installation    (compiles the simulator)

A checkout and a wheel hold the same files in different places. This module needs only the standard
library, because it runs before any package is installed. Each step stores a digest of its inputs
and is skipped while the digest is the same.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the checkout, or the folder of installed packages
IN_CHECKOUT = (ROOT / "manage.py").is_file()
# Folder of templates, static files and documents; a wheel has them inside the package.
FILES = ROOT if IN_CHECKOUT else ROOT / "planner" / "shipped"
COMMAND = "bin/manage" if IN_CHECKOUT else "headroom"
REFUSED = 2  # exit status of a command that has printed why it failed
LARGE_UNUSED = ("widgetbundle.js", "datasets", "templates")  # files of Plotly for notebooks


class SetUpError(Exception):
    """An error of the set-up: one sentence that says what is wrong, and the remedy."""


def data_folder() -> Path:
    """Return the folder that the product writes to: HEADROOM_DATA_DIR if it is set.

    Default: ``var`` of the checkout. Without a checkout: ``headroom`` in the folder for data of
    programs (XDG_DATA_HOME, or ~/.local/share).
    """
    given = os.environ.get("HEADROOM_DATA_DIR", "").strip()
    if IN_CHECKOUT:
        return ROOT / (given or "var")
    shared = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(given or shared / "headroom").absolute()


@dataclass(frozen=True)
class Installation:
    """The ``data`` folder of the product, and the ``python`` that runs it."""

    data: Path
    python: Path

    def prepare(self, *, web: bool) -> None:
        """Create or upgrade the database, and for ``web`` collect the static files."""
        self.make_data_folder()
        with turn(self.data / "preparing"):
            # Checks import all pages, which takes half of the time.
            options = ["--verbosity=0", "--skip-checks"]
            is_shared_database = bool(os.environ.get("DATABASE_URL"))
            if not is_shared_database:
                if not (self.data / "headroom.sqlite3").exists():
                    (self.data / "migrate.stamp").unlink(missing_ok=True)
                self._step("migrate", (ROOT / "planner" / "migrations").glob("*.py"), *options)
            elif web:  # its operators migrate a shared database for other commands
                self._manage("migrate", *options)
            if web:
                options += ["--no-input", *(f"--ignore={name}" for name in LARGE_UNUSED)]
                # A class that a page begins to use belongs to the trimmed style sheet.
                sources = [*(FILES / "static").rglob("*"), *(FILES / "templates").rglob("*.html")]
                self._step("collectstatic", sources, *options)

    def compile_simulator(self) -> None:
        """Compile the simulator if its code or a package changed."""
        self._step("warm_up", (ROOT / "simulation").rglob("*.py"))

    def make_data_folder(self) -> None:
        """Create the data folder, readable by its owner only; exit if that is not possible."""
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.data, os.W_OK | os.X_OK):
                raise PermissionError(0, "Not writable")
        except OSError as problem:
            sys.stderr.write(
                f"HEADROOM_DATA_DIR: {self.data} cannot be used as a folder ({problem.strerror}). "
                "Choose a folder that this user may write, or change its owner.\n"
            )
            sys.exit(REFUSED)

    def _step(self, command: str, sources: Iterable[Path], *arguments: str) -> None:
        """Run a command of the product if ``sources`` or the required packages changed since."""
        packages = [ROOT / name for name in ("requirements.txt", "constraints.txt")]
        packages += ROOT.glob("headroom-*.dist-info/METADATA")
        current_digest = digest([*sorted(sources), *packages])
        stamp = self.data / f"{command}.stamp"  # the digest at the last run
        if not fresh(stamp, current_digest):
            say(command.replace("_", " "))
            self._manage(command, *arguments)
            stamp.write_text(current_digest)

    def _manage(self, command: str, *arguments: str) -> None:
        """Run a command of the product; raise SetUpError if it fails."""
        problem = f"`{command}` failed; see its message above."
        words = ("-m", "planner", command, *arguments)
        run(problem, self.python, *words, refused=REFUSED, folder=ROOT)


@contextmanager
def turn(lock: Path) -> Iterator[None]:
    """Wait until no other process holds the file ``lock``, and hold it in the block.

    A step of another process that is under way looks like one that was interrupted.
    """
    # O_RDONLY: the file may belong to another user.
    with os.fdopen(os.open(lock, os.O_RDONLY | os.O_CREAT, 0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up of {lock.parent} to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(files: Iterable[Path], root: Path = ROOT) -> str:
    """Return a digest of the names and contents of files, and of the version of Python."""
    total = hashlib.sha256(sys.version.encode())
    for file in files:
        if file.is_file():
            total.update(f"{file.relative_to(root)}\n".encode())
            total.update(file.read_bytes())
    return total.hexdigest()


def fresh(stamp: Path, source_digest: str) -> bool:
    """Return whether the file ``stamp`` contains ``source_digest``: the step is up to date."""
    return stamp.exists() and stamp.read_text() == source_digest


def run(
    problem: str,
    *command: str | Path,
    at_end: Callable[[], None] | None = None,
    refused: int | None = None,
    folder: Path | None = None,
) -> None:
    """Run a command, with its output on stderr; raise SetUpError with ``problem`` if it fails.

    ``at_end`` is called when the command has ended, unless a signal killed it. If the command ends
    with the status ``refused``, it has printed the reason, and this process exits with it too.
    """
    status = subprocess.run(  # noqa: S603 - our own commands
        command, check=False, stdout=sys.stderr, cwd=folder
    ).returncode
    if status == refused:
        sys.exit(status)
    if at_end is not None and status >= 0:
        at_end()
    if status:
        raise SetUpError(problem)


def say(step: str) -> None:
    """Print the step of the set-up that begins."""
    sys.stderr.write(f"Headroom set-up: {step} ...\n")


def here() -> Installation:
    """Return the installation that this process runs."""
    return Installation(data_folder(), Path(sys.executable))


if __name__ == "__main__":
    here().compile_simulator()
