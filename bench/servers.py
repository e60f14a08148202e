"""PostgreSQL and Redis of a bench's own, durable as a deployment's, to be killed and started."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
import redis

from planner.config.child_processes import die_with_parent
from tests.programs import find_program
from tests.services import unprivileged

STARTS_WITHIN_S = 60.0


class Server:
    """One process and its children, on what it wrote to its folder."""

    def __init__(self, command: Sequence[str], folder: Path, probe: Any, who: dict[str, Any]):
        self._command, self._folder, self._probe, self._who = command, folder, probe, who
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers; PostgreSQL first replays its log."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent, **self._who,
            )  # fmt: skip
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                self._probe()
                return
            except (psycopg.OperationalError, redis.ConnectionError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def kill(self) -> None:
        """Kill all processes at once, as when a container or a machine ends."""
        family = [psutil.Process(self._process.pid)]
        family += family[0].children(recursive=True)
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family[1:], timeout=10)

    def stop(self) -> None:
        if self._process.poll() is None:
            self.kill()


@contextmanager
def servers() -> Iterator[dict[str, Server]]:
    """Start database and broker; DATABASE_URL and REDIS_URL name them to child processes."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headroom-servers-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # PostgreSQL's user must get through
        made = {}
        for name, make in (("database", _postgresql), ("broker", _redis)):
            (folder / name).mkdir()
            made[name], url = make(folder / name)
            stack.callback(made[name].stop)
            os.environ["DATABASE_URL" if name == "database" else "REDIS_URL"] = url
        yield made


def _postgresql(folder: Path) -> tuple[Server, str]:
    who: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to be run by root
        account = unprivileged()
        os.chown(folder, account.pw_uid, account.pw_gid)
        who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    initdb = [find_program("initdb") or "initdb", "--pgdata", str(folder / "data"), "--auth=trust"]
    initdb += ["--username=headroom", "--no-locale", "--encoding=UTF8", "--no-sync"]
    subprocess.run(initdb, cwd=folder, check=True, capture_output=True, **who)
    where = {"host": str(folder), "user": "headroom", "dbname": "postgres"}
    command = [find_program("postgres") or "postgres", "-D", str(folder / "data")]
    command += ["--listen_addresses=", f"--unix_socket_directories={folder}"]
    server = Server(command, folder, lambda: psycopg.connect(**where).close(), who)
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute("CREATE DATABASE headroom")
    return server, f"postgresql://headroom@{quote(str(folder), safe='')}/headroom"


def _redis(folder: Path) -> tuple[Server, str]:
    """Return a Redis server with an append-only log, as compose and chart configure it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [find_program("redis-server") or "redis-server", "--port", str(port)]
    command += ["--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--save", ""]
    server = Server(command, folder, lambda: redis.Redis(port=port).ping(), {})
    return server, f"redis://127.0.0.1:{port}/0"
