"""Starts the product's processes, watches them, and leaves none behind."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from types import TracebackType
from typing import IO

from django.conf import settings

from planner.config.leash import die_with_parent
from planner.services import compiling

CELERY = ("-m", "celery", "--quiet", "--app=planner.config.celery")
STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 5.0  # a run cut short here is taken up again at the next start


class Stopped(Exception):
    """Why the product is not running, in one sentence."""


class Children:
    """Processes, each leading a group of its own; leaving the context ends every group."""

    def __init__(self) -> None:
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._failing: dict[str, str] = {}

    def start(
        self,
        name: str,
        *arguments: str,
        inherits: socket.socket | IO[str] | None = None,
        failing: str = "",
    ) -> None:
        """Run ``python ARGUMENTS``; it may inherit an open file or socket. One that may end by
        itself says ``failing`` what it means when it did not end well."""
        if failing:
            self._failing[name] = failing
        self._started[name] = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,  # standard output is for the address and the login
            start_new_session=True,
            preexec_fn=die_with_parent,
            pass_fds=[inherits.fileno()] if inherits else [],
        )

    def check(self) -> None:
        """Raises Stopped when a process has ended that must not."""
        for name, process in list(self._started.items()):
            status = process.poll()
            if status is None:
                continue
            ended = f"The {name} process ended with status {status}"
            if name not in self._failing:
                raise Stopped(f"{ended}, so everything was stopped; its last messages stand above.")
            if status:
                print(f"{ended}: {self._failing[name]}", file=sys.stderr, flush=True)  # noqa: T201
            del self._started[name]

    def watch(self) -> None:
        """Returns only by an exception: Stopped, or the KeyboardInterrupt of a stop signal."""
        while True:
            self.check()
            time.sleep(0.5)

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for process in self._started.values():
            process.terminate()  # the leader alone, who ends its own children in order
        deadline = time.monotonic() + STOPS_WITHIN_S
        with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):  # asked again: wait no longer
            for process in self._started.values():
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in self._started.values():
            # Also when the leader is gone: a group lives as long as its last member.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that the web server inherits, so that nobody can take the port meanwhile.

    Port 0 is any free one. Raises Stopped when the address cannot be had.
    """
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as problem:
        reason = (
            "is taken"
            if problem.errno == errno.EADDRINUSE
            else f"cannot be used ({problem.strerror})"
        )
        raise Stopped(
            f"Port {port} of {host} {reason}; stop what listens there or choose another by --port."
        ) from None


def start_web(children: Children, listener: socket.socket) -> None:
    children.start(
        "web",
        "-m",
        "gunicorn",
        "planner.config.wsgi",
        f"--bind=fd://{listener.fileno()}",
        "--worker-class=gthread",
        "--workers=2",
        "--threads=4",
        "--preload",
        "--no-control-socket",
        "--log-level=warning",
        inherits=listener,
    )


def start_worker(children: Children) -> None:
    alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    children.start("worker", *CELERY, "worker", *alone)


def start_compiler(children: Children) -> None:
    """Compile the simulator if need be; runs wait for it (``services.compiling``)."""
    if held := compiling.lock():
        with held:  # what inherits it holds it from here on
            children.start(
                "compiler",
                str(settings.BASE_DIR / "bin" / "setup.py"),
                "compile",
                inherits=held,
                failing="the simulator is not compiled, for which its messages above give the "
                "reason; the first run will try again.",
            )


def start_scheduler(children: Children) -> None:
    children.start("scheduler", *CELERY, "beat")


def wait_until_up(children: Children, url: str) -> None:
    """Until the site answers; raises Stopped when it does not. Runs wait for the worker."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        children.check()
        if answers(f"{url}/health/"):
            return
        time.sleep(0.02)
    raise Stopped(
        f"The web server did not start within {STARTS_WITHIN_S:.0f} s; see its messages above."
    )


def answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
