"""Start the product's processes, watch them, and leave none behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from django.conf import settings

from planner.config.child_processes import die_with_parent
from planner.config.environment import memory_mb
from planner.services import kernel_compilation
from planner.services.run_limits import ENDED_WITH_RUN

CELERY = ("-m", "celery", "--quiet", "--app=planner.config.celery")
STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 5.0  # processes that still run then are killed; a run continues at the next start
PORT_RELEASE_S = 3.0  # web workers of a killed supervisor hold the port for about a second
STEADY_S = 10.0  # a process that ends later than this after its start had started well
MAX_ENDS = 3  # everything stops once a process ended so often in a row within STEADY_S of its start
FIRST_WAIT_S = 0.5  # before a restart; doubled with every further end


class Stopped(Exception):
    """The reason why the product is not running, in one sentence."""


@dataclass(slots=True)
class _Child:
    """A process that the supervisor keeps running, over all its restarts."""

    name: str
    command: list[str]
    inherited_files: list[int]  # descriptors
    failure_message: str  # shown if it fails; "": it is restarted whenever it ends
    executes_runs: bool = False  # then it learns its id and how its predecessor ended
    worker_id: str = ""
    last_end: str = ""  # JSON for HEADROOM_WORKER_ENDED
    process: subprocess.Popen[bytes] | None = None  # None: it waits for its restart
    started_s: float = 0.0  # seconds of the monotonic clock
    restart_s: float = 0.0  # time of the next start, on the same clock
    ends_in_a_row: int = 0


class Children:
    """Processes, each with its own process group; leaving the context ends every group.

    A process that ends is started again, after a wait that doubles each time. One that keeps ending
    right after its start stops everything.
    """

    def __init__(self) -> None:
        self._children: list[_Child] = []
        self._stop_requested = False

    def start(
        self,
        name: str,
        *arguments: str,
        inherits: socket.socket | IO[str] | None = None,
        failure_message: str = "",
        executes_runs: bool = False,
    ) -> None:
        """Start ``python ARGUMENTS`` as a child process; it may inherit an open file or socket.

        ``name`` is what messages call it. It is restarted when it ends, unless ``failure_message``
        is given. Then that is shown if its exit status is not 0. One that ``executes_runs`` gets an
        id and the cause of its predecessor's end in its environment.
        """
        command = [sys.executable, *arguments]
        descriptors = [inherits.fileno()] if inherits else []
        child = _Child(name, command, descriptors, failure_message, executes_runs)
        self._children.append(child)
        _start_process(child)

    def stop(self) -> None:
        """Have the next ``check`` raise KeyboardInterrupt; for a signal handler.

        A second call raises it at once. The first does not, because that could leave a lock of
        ``subprocess`` locked forever.
        """
        if self._stop_requested:
            raise KeyboardInterrupt
        self._stop_requested = True

    def check(self) -> None:
        """Restart processes that have ended; raise Stopped if one keeps ending."""
        if self._stop_requested:
            raise KeyboardInterrupt
        now_s = time.monotonic()
        for child in list(self._children):
            if child.process is None:
                if now_s >= child.restart_s:
                    _start_process(child)
                continue
            exit_status = child.process.poll()
            if exit_status is None:  # it still runs
                continue
            if not child.failure_message:
                _schedule_restart(child, exit_status, now_s)
                continue
            self._children.remove(child)
            if exit_status:
                words = _end_words(exit_status)
                _say(f"The {child.name} process {words}: {child.failure_message}")

    def watch(self) -> None:
        """Call ``check`` until it raises Stopped or KeyboardInterrupt."""
        while True:
            self.check()
            time.sleep(0.2)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        """Ask all workers to end, wait for them, and end those that remain."""
        processes = [child.process for child in self._children if child.process is not None]
        for process in processes:
            process.terminate()  # the leader alone, which ends its own children in order
        deadline = time.monotonic() + STOPS_WITHIN_S
        # A second request to stop ends the wait.
        with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in processes:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in processes:
            _end_group(process)
            process.wait()


def _start_process(child: _Child) -> None:
    """Start a child process in its own group, which ends with this process."""
    environment = dict(os.environ)
    if child.executes_runs:
        child.worker_id = uuid4().hex
        environment["HEADROOM_WORKER_ID"] = child.worker_id
        environment["HEADROOM_WORKER_ENDED"] = child.last_end
    child.process = subprocess.Popen(  # noqa: S603 - our own modules
        child.command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # standard output is for the address and the login
        start_new_session=True,
        preexec_fn=die_with_parent,
        pass_fds=child.inherited_files,
    )
    child.started_s = time.monotonic()


def _schedule_restart(child: _Child, exit_status: int, now_s: float) -> None:
    """Schedule the restart of a child that ended; raise Stopped after MAX_ENDS."""
    assert child.process is not None
    _end_group(child.process)  # its own children may still run
    child.process = None
    if child.executes_runs:
        end = {"worker": child.worker_id, "cause": cause_of(exit_status)}
        child.last_end = json.dumps(end)
    if exit_status == ENDED_WITH_RUN:  # a planned end, however often
        child.ends_in_a_row = 0
        child.restart_s = now_s
        return
    had_started_well = now_s - child.started_s >= STEADY_S
    child.ends_in_a_row = 1 if had_started_well else child.ends_in_a_row + 1
    words = _end_words(exit_status)
    if child.ends_in_a_row >= MAX_ENDS:
        raise Stopped(
            f"The {child.name} process {words}, {child.ends_in_a_row} times in a row within "
            f"{STEADY_S:.0f} s of its start, so everything was stopped. See its last messages "
            "above."
        )
    wait_s = FIRST_WAIT_S * 2 ** (child.ends_in_a_row - 1)
    child.restart_s = now_s + wait_s
    _say(f"The {child.name} process {words} and is started again in {wait_s:g} s.")


def _end_words(exit_status: int) -> str:
    """Return in words how a process ended; a negative status is the number of a signal."""
    if exit_status < 0:
        number = -exit_status
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended with status {exit_status}"


def cause_of(exit_status: int) -> str:
    """Return in words how a child ended: by a signal, its own exit, or the memory limit."""
    if exit_status == -signal.SIGKILL and memory_kills.has_risen():
        return f"was killed at the memory limit of its container ({memory_mb():,} MB)"
    return _end_words(exit_status)


class MemoryKills:
    """The number of processes of this container that the kernel killed at its memory limit."""

    def __init__(self) -> None:
        self._seen = self._count()

    def has_risen(self) -> bool:
        """Return whether the kernel killed a process since the last call."""
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        """Return how many processes the kernel has ended for lack of memory; 0 if not known."""
        with suppress(OSError, ValueError):
            for line in MEMORY_EVENTS.read_text(encoding="ascii").splitlines():
                name, count = line.split()
                if name == "oom_kill":
                    return int(count)
        return 0


MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")  # cgroup v2
memory_kills = MemoryKills()


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the group that ``process`` leads, even if that has ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket for the web server to inherit, so that nobody takes the port.

    Port 0 is any free one. A supervisor that was killed may leave the port in use for a moment, so
    this waits. Raises Stopped if the address is not available.
    """
    deadline_s = time.monotonic() + PORT_RELEASE_S
    while True:
        try:
            return socket.create_server((host, port), backlog=512)
        except OSError as problem:
            is_in_use = problem.errno == errno.EADDRINUSE
            if not is_in_use or time.monotonic() > deadline_s:
                reason = "is taken" if is_in_use else f"cannot be used ({problem.strerror})"
                raise Stopped(
                    f"Port {port} of {host} {reason}. Stop the program on that port, or choose "
                    "another with --port."
                ) from None
        time.sleep(0.1)


def web_command(listener: socket.socket) -> tuple[str, ...]:
    """Return the arguments of Python for the web server, which inherits the socket ``listener``."""
    return (
        "-m",
        "gunicorn",
        "planner.config.wsgi",
        "--config=python:planner.config.web_workers",
        f"--bind=fd://{listener.fileno()}",
        "--worker-class=gthread",
        "--workers=2",
        "--threads=4",
        "--preload",
        "--no-control-socket",
        "--log-level=warning",
    )


def start_web(children: Children, listener: socket.socket) -> None:
    """Start the web server on a listening socket."""
    children.start("web", *web_command(listener), inherits=listener)


def start_workers(children: Children) -> None:
    """Start one worker for short work, and one per simulation that may run at a time.

    Each is a process that forks nothing and executes one run at a time. A forked child could be
    killed while it holds a lock of a pool, or be forked while a thread of a library holds one.
    Either would stop the others forever.
    """
    queues_of_worker = {"short": "short"}
    for number in range(1, settings.HEADROOM_WORKER_CONCURRENCY + 1):
        queues_of_worker[str(number)] = "long,short"
    unconnected = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    for name, queues in queues_of_worker.items():
        options = ("--pool=solo", f"--hostname=worker-{name}@%h", f"--queues={queues}")
        command = (*CELERY, "worker", *options, *unconnected)
        children.start(f"worker {name}", *command, executes_runs=True)


def only_one(data_dir: Path) -> IO[str]:
    """Lock the data folder for this process; raise Stopped if the product runs on it already.

    The lock holds as long as the returned file is open.
    """
    file = (data_dir / "serving").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        address = file.read().strip() or "is being started"
        file.close()
        raise Stopped(
            f"Headroom already runs on {data_dir} ({address}). Stop it, or give this one a "
            "different folder in HEADROOM_DATA_DIR."
        ) from None
    file.truncate(0)
    return file


def start_compiler(children: Children) -> None:
    """Start a process that compiles the simulator if needed; see services.kernel_compilation."""
    lock = kernel_compilation.compile_lock()
    if lock is None:
        return
    with lock:  # the child inherits the lock and holds it from here on
        children.start(
            "compiler",
            "-m",
            "planner.installation",
            inherits=lock,
            failure_message=(
                "the simulator is not compiled. See its messages above. The first run tries again."
            ),
        )


def start_scheduler(children: Children) -> None:
    """Start Celery's scheduler."""
    children.start("scheduler", *CELERY, "beat")


def wait_until_up(children: Children, url: str) -> None:
    """Wait until the site answers; raise Stopped if it does not.

    It does not wait for workers: runs stay in the queue until one is up.
    """
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        children.check()
        if answers(f"{url}/readyz"):
            return
        time.sleep(0.02)
    raise Stopped(
        f"The web server did not start within {STARTS_WITHIN_S:.0f} s. See its messages above."
    )


def answers(url: str) -> bool:
    """Return whether ``url`` answers 200."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
