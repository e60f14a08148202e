"""The product in a folder of its own, as a bench starts it, kills it and stops it."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]


@contextmanager
def fresh_folder(name: str, *, embedded: bool = True) -> Iterator[None]:
    """Give this process and its children a new data folder.

    They use SQLite and a folder queue, or the database and broker of the environment.
    """
    with tempfile.TemporaryDirectory(prefix=f"headroom-{name}-") as folder:
        os.environ |= {
            "HEADROOM_DATA_DIR": folder,
            "DJANGO_SETTINGS_MODULE": "planner.config.settings",
            "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", str(ROOT / "var" / "numba")),
            "HEADROOM_LOG_LEVEL": "WARNING",
        }
        servers = ("DATABASE_URL", "REDIS_URL") if embedded else ()
        for variable in (*servers, "SECRET_KEY"):
            os.environ.pop(variable, None)
        quick = ("--verbosity=0", "--skip-checks")  # checks import all pages
        for command in (["migrate"], ["collectstatic", "--no-input"]):
            subprocess.run([sys.executable, "manage.py", *command, *quick], cwd=ROOT, check=True)
        yield


class Product:
    """`manage.py serve` in a folder, on one port for good; whether it answers is watched."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment, self._port = environment, "0"
        self.started = 0
        self.longest_s = 0.0
        self._over = threading.Event()
        self.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--no-demo", "--port", self._port],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip():
            sys.exit("The product did not start; its message is above.")
        self.address = line.split()[-1]
        self._port = self.address.rpartition(":")[2]
        self.started += 1

    def victim(self, kind: str) -> psutil.Process | None:
        """Return one process of this kind; None if there is none."""
        supervisor = psutil.Process(self._process.pid)
        if kind == "supervisor":
            return supervisor
        word = {"web": "gunicorn", "web worker": "gunicorn", "scheduler": "beat"}.get(kind, kind)
        processes: list[psutil.Process] = []
        for child in supervisor.children():
            with suppress(psutil.Error):
                if word in child.cmdline():
                    processes += child.children() if kind == "web worker" else [child]
        return random.choice(processes) if processes else None

    def kill(self, kind: str) -> bool:
        victim = self.victim(kind)
        if victim is None:
            return False
        with suppress(psutil.Error):
            victim.kill()
        if kind == "supervisor":
            self._process.wait()
            self.start()
        return True

    def keep(self) -> None:
        """Start it again where it has ended itself, as systemd does: of three kills in a row of one
        process within 10 s of its start the supervisor makes an end."""
        if self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        self._over.set()
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)

    def _watch(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        answered = time.monotonic()
        while not self._over.wait(0.2):
            with suppress(OSError, urllib.error.URLError):
                opener.open(f"{self.address}/healthz", timeout=30).close()
                now = time.monotonic()
                self.longest_s, answered = max(self.longest_s, now - answered), now
