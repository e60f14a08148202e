"""``bin/run``: start and stop the web server, the API, the workers and the scheduler together."""

import os
import signal
import sys
from pathlib import Path
from socket import socket
from typing import IO, Any, NoReturn

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import connection

from planner.config import supervisor
from planner.config.environment import stored_secret
from planner.config.site_check import demo_check, page_check, worker_check
from planner.installation import COMMAND
from planner.management.help import HelpedCommand
from planner.models import User
from planner.models.workspace import MAIN, use_workspace

DEMO_USER, DEMO_APPROVER = "demo", "demo-approver"
DEFAULT_PORT = 8000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Command(HelpedCommand):
    help = "Run the product: web, API, workers and scheduler. Ctrl-C stops it."
    examples = ("", "--port 9000 --no-demo", "--check")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=int, help=f"port of the site; 0: any free one. Default: {DEFAULT_PORT}"
        )
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--no-demo", action="store_true", help="skip demo data and demo login")
        parser.add_argument(
            "--check",
            action="store_true",
            help=(
                "check pages, workers and the demo's plan on a free port, then stop (--no-demo: "
                "without the plan)"
            ),
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Start all processes, and watch them until a signal stops them; with --check, check them.

        Exits with 1 if a process ends or a check fails, and with 2 for an option that is not valid.
        """
        is_check, with_demo = options["check"], not options["no_demo"]
        lock, listener = self._lock_and_listen(
            options["host"], options["port"], is_check=is_check, with_demo=with_demo
        )
        children = supervisor.Children()
        stop_on_signals(children)
        try:
            with lock, children:
                supervisor.start_compiler(children)  # before the workers, because runs wait for it
                supervisor.start_web(children, listener)
                password = self._demo() if with_demo else ""
                host, port = listener.getsockname()[:2]
                if host == "0.0.0.0":  # noqa: S104 - compared, not bound
                    host = "127.0.0.1"
                address = f"http://{host}:{port}"
                supervisor.wait_until_up(children, address)
                lock.write(f"process {os.getpid()}, {address}")
                lock.flush()
                if is_check:
                    _ready_file().unlink(missing_ok=True)
                # Pages do not need them, so they start last and do not delay the site.
                supervisor.start_workers(children)
                supervisor.start_scheduler(children)
                self.stdout.write(f"Headroom is running at http://{options['host']}:{port}")
                self._print_login(password)
                if is_check:
                    self._check(address, password, children)
                else:
                    children.watch()
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
        except supervisor.Stopped as problem:
            self.stderr.write(str(problem))
            sys.exit(1)

    def _lock_and_listen(
        self, host: str, port: int | None, *, is_check: bool, with_demo: bool
    ) -> tuple[IO[str], socket]:
        """Return the lock of the data folder and the listening socket.

        Exits if an option is not valid, if the product runs already, or if the port is in use.
        """
        if port is None:
            # A check must not collide with a running site.
            port = 0 if is_check else DEFAULT_PORT
        if not 0 <= port <= 65535:
            self._refuse(f"--port {port} is not a port. Give a number from 0 to 65535.")
        if with_demo and host not in LOOPBACK:
            self._refuse(
                f"--host {host} is reachable by others, and the demo user is an admin of this "
                f"machine. Add --no-demo, and {COMMAND} user add for each person."
            )
        try:
            lock = supervisor.only_one(settings.HEADROOM_DATA_DIR)
        except supervisor.Stopped as problem:
            self._refuse(str(problem))
        try:
            return lock, supervisor.listen(host, port)
        except supervisor.Stopped as problem:
            lock.close()
            self._refuse(str(problem))

    def _print_login(self, password: str) -> None:
        """Print how to sign in; ``password`` is that of the demo, "" if there is no demo."""
        if password:
            self.stdout.write(f"Demo login: user {DEMO_USER}, password {password}")
            self.stdout.write(f"Demo approver: user {DEMO_APPROVER}, the same password")
        elif not User.objects.exists():
            self.stdout.write(
                f"Nobody has an account yet. `{COMMAND} user add NAME --role admin` prints "
                "the page of this site where NAME chooses a password."
            )
        connection.close()  # this process only waits from here on
        self.stdout.flush()

    def _check(self, address: str, password: str, children: supervisor.Children) -> None:
        """Check pages and workers of the running site, and the demo if there is a ``password``."""

        def say(what: str) -> None:
            self.stdout.write(f"Check: {what}")

        page_check(address, say=say)
        worker_check(_ready_file(), still_alive=children.check, say=say)
        if password:
            demo_check(
                address, user=DEMO_USER, password=password, still_alive=children.check, say=say
            )

    def _demo(self) -> str:
        """Create the demo's users, scenario and first run if missing; return the password."""
        password = stored_secret(settings.HEADROOM_DATA_DIR / "demo-login.txt", random_bytes=12)
        if not User.objects.filter(username=DEMO_USER).exists():
            from planner.services.demo import demo_ensure  # slow to import, needed once

            with use_workspace(MAIN):
                demo_ensure(password=password)
        else:
            for user in User.objects.filter(username__in=(DEMO_USER, DEMO_APPROVER)):
                if not user.check_password(password):  # the file was lost, or is another folder's
                    user.set_password(password)
                    user.save(update_fields=["password"])
        connection.close()  # this process only waits from here on
        return password

    def _refuse(self, sentence: str) -> NoReturn:
        """Print ``sentence`` to stderr and exit with 2."""
        self.stderr.write(sentence)
        sys.exit(2)


def _ready_file() -> Path:
    """Return the file that a worker creates when it is ready."""
    default = str(settings.HEADROOM_DATA_DIR / "worker-ready")
    return Path(os.environ.setdefault("HEADROOM_WORKER_READY", default))


def stop_on_signals(children: supervisor.Children) -> None:
    """Stop all children on Ctrl-C, on ``kill`` and when the terminal closes."""

    def stop(*_: Any) -> None:
        children.stop()

    # Set SIGINT too, because shells start background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it on purpose
        signal.signal(signal.SIGHUP, stop)
