"""Runs pytest with everything the whole suite needs; `bin/test` calls it with pytest's arguments.

PostgreSQL and Redis: those of DATABASE_URL and REDIS_URL when set, else private servers that live
as long as the tests. What is not installed is installed by apt-get where that may be done.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import redis

from planner.config.child_processes import die_with_parent
from tests.programs import find_program
from tests.system_packages import Missing, install_missing

STARTS_WITHIN_S = 180.0


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        install_missing()
        folder = Path(tempfile.mkdtemp(prefix="headroom-test-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # the user of PostgreSQL must get through
        if not os.environ.get("DATABASE_URL"):
            os.environ["DATABASE_URL"] = stack.enter_context(postgresql(folder / "postgresql"))
        if not os.environ.get("REDIS_URL"):
            os.environ["REDIS_URL"] = stack.enter_context(redis_server(folder))
        os.environ["HEADROOM_TEST_DIR"] = str(folder / "data")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        return run_pytest(["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *arguments])


def run_pytest(arguments: list[str]) -> int:
    tests = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments], preexec_fn=die_with_parent
    )
    try:
        return tests.wait()
    except KeyboardInterrupt:  # Ctrl-C reaches pytest too; a signal to this process does not
        with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            tests.send_signal(signal.SIGINT)
            tests.wait(timeout=15)
        tests.kill()
        return 130


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A server on a Unix socket in ``folder``, durable for nobody; gives its DATABASE_URL."""
    folder.mkdir(mode=0o700)
    identity = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to be run by root
        account = unprivileged()
        os.chown(folder, account.pw_uid, account.pw_gid)
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    data, log = folder / "data", folder.with_suffix(".log")
    initdb = [find_program("initdb") or "initdb", "--pgdata", data, "--username=headroom"]
    initdb += ["--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync"]
    made = subprocess.run(
        initdb,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **identity,
    )
    if made.returncode:
        raise Missing(f"initdb failed: {made.stderr.strip() or made.stdout.strip()}")
    options = ["listen_addresses=", f"unix_socket_directories={folder}", "max_connections=60"]
    options += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
    options += ["autovacuum=off", "jit=off"]  # tables are small and soon empty again
    server = find_program("postgres") or "postgres"
    command = [server, "-D", str(data), *(f"--{option}" for option in options)]
    with running("PostgreSQL", command, log, cwd=folder, **identity) as alive:
        where = {"host": str(folder), "user": "headroom", "dbname": "postgres"}
        wait_until(alive, "PostgreSQL", log, lambda: psycopg.connect(**where).close())
        yield f"postgresql://headroom@{quote(str(folder), safe='')}/headroom"


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A server on a free port of this machine, nothing kept; gives its REDIS_URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = find_program("redis-server") or "redis-server"
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no"]
    log = folder / "redis.log"
    with running("Redis", command, log) as alive:
        wait_until(alive, "Redis", log, lambda: redis.Redis(port=port).ping())
        yield f"redis://127.0.0.1:{port}/0"


def unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise Missing("PostgreSQL refuses to be run by root. Run bin/test as another user.")


@contextmanager
def running(
    name: str, command: list[str], log: Path, **how: object
) -> Iterator[Callable[[], bool]]:
    """The server while the context lasts; gives a function that tells whether it still runs."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for pytest, which still needs the server
            preexec_fn=die_with_parent,
            **how,
        )
    try:
        yield lambda: server.poll() is None
    finally:
        server.send_signal(signal.SIGINT)  # PostgreSQL: do not wait for clients
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_until(
    alive: Callable[[], bool], name: str, log: Path, probe: Callable[[], object]
) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while alive() and time.monotonic() < deadline:
        try:
            probe()
        except (psycopg.OperationalError, redis.ConnectionError):
            time.sleep(0.1)
        else:
            return
    raise Missing(f"{name} did not start: {log.read_text(errors='replace')[-1000:].strip()}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Missing as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
