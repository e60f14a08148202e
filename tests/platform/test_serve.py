"""`bin/run` starts everything, and leaves nothing behind however it ends."""

import fcntl
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import psutil
import pytest
from django.core.management import call_command

from planner.config.supervisor import MAX_ENDS, Children, Stopped, answers, listen
from planner.services.run_limits import ENDED_WITH_RUN
from tests.platform.conftest import ROOT, manage

ENDS_WITHIN_S = 180.0  # on a machine that has much else to do


class Serving:
    """A started product: its address and its processes."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--no-demo", "--port", "0"],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # what comes with the first line is left for ``ended``
        )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline().decode()
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def named(self, name: str) -> psutil.Process:
        return next(child for child in self.children() if name in command(child))

    def children(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        self.family += [child for child in children if child not in self.family]
        return [child for child in children if runs(child)]

    def ended(self) -> tuple[str, str]:
        """What it printed since the greeting, and what it complained of, once it has ended."""
        printed, complained = self.process.communicate(timeout=ENDS_WITHIN_S)
        return printed.decode(), complained.decode()

    def left(self) -> list[psutil.Process]:
        """Those of the family that still run a minute later.

        Orphans belong to the machine's first process, which may be slow to take note of their end
        or never do: a zombie has ended.
        """
        deadline = time.monotonic() + ENDS_WITHIN_S
        left = self.family
        while (left := [each for each in left if runs(each)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "this did not come about in time"
        time.sleep(0.1)


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command(process: psutil.Process) -> list[str]:
    """Its command line; none of one that has ended between being listed and being asked."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie too
        return []


@contextmanager
def served(environment: dict[str, str]) -> Iterator[Serving]:
    product = Serving(environment)
    try:
        yield product
    finally:
        for process in product.family:
            if runs(process):
                process.kill()
        product.process.kill()
        product.process.communicate()


def test_a_start_waits_for_no_compiler_and_no_lost_run_and_leaves_no_orphan(
    another: dict[str, str],
) -> None:
    """Somebody else compiles all the time, and a run has lost its worker, of which monitors are
    told (/health/): the pages are there all the same. Then the supervisor is killed."""
    lost = (
        "from datetime import timedelta; from django.utils import timezone; "
        "from planner.models import Run; "
        "from planner.models.workspace import enter; enter('main'); "
        "Run.objects.create(kind='plan', state='running', "
        "heartbeat_at=timezone.now() - timedelta(hours=1))"
    )
    done = manage(another, "shell", "--no-imports", "--command", lost)
    assert done.returncode == 0, done.stderr
    compiling = Path(another["HEADROOM_DATA_DIR"]) / "compiling"
    with compiling.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with served(another) as product:
            assert product.greeting.startswith("Headroom is running at")
            address = product.greeting.split()[-1]
            wait_for(lambda: answers(f"{address}/readyz"))  # the second web worker may still load
            assert not any("compile" in command(child) for child in product.family)
            product.process.kill()
            assert not product.left()


def test_a_compiler_that_fails_is_told_once_and_stops_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Children() as children:
        children.start("compiler", "-c", "raise SystemExit(3)", failure_message="runs try again.")
        children.start("web", "-c", "import time; time.sleep(600)")
        deadline = time.monotonic() + ENDS_WITHIN_S
        complained = ""
        while not complained and time.monotonic() < deadline:
            children.check()
            complained = capfd.readouterr().err
            time.sleep(0.05)
        assert complained == "The compiler process ended with status 3: runs try again.\n"
        children.check()
        assert not capfd.readouterr().err


def test_what_dies_is_started_again_until_ctrl_c(embedded: dict[str, str]) -> None:
    """Each end of one process was once the end of all; nobody else may run on the folder."""
    with served(embedded) as product:
        assert product.greeting.startswith("Headroom is running at http://127.0.0.1:")
        second = manage(embedded, "serve", "--no-demo", "--port", "0")
        assert second.returncode == 2
        assert f"process {product.process.pid}, http://127.0.0.1:" in second.stderr

        address = product.greeting.split()[-1]
        wait_for(lambda: len(product.children()) == 4)  # web, two workers, scheduler
        for name in ("gunicorn", "worker", "beat"):
            victim = product.named(name)
            victim.kill()
            wait_for(lambda: victim.pid not in {child.pid for child in product.children()})  # noqa: B023
        wait_for(lambda: len(product.children()) == 4 and answers(f"{address}/health/"))
        product.process.send_signal(signal.SIGINT)
        printed, complained = product.ended()
        assert product.process.returncode == 0
        assert "Stopped." in printed
        assert "bin/manage user add NAME --role admin" in printed
        for name in ("web", "worker short", "scheduler"):
            assert f"The {name} process was killed by signal 9 (SIGKILL)" in complained
        assert "Traceback" not in complained
        assert not product.left()


def test_what_keeps_dying_ends_everything(capfd: pytest.CaptureFixture[str]) -> None:
    with Children() as children:
        children.start("web", "-c", "import time; time.sleep(600)")
        children.start("worker", "-c", "raise SystemExit(3)")
        with pytest.raises(Stopped, match=r"worker .* 3 times in a row"):
            children.watch()
    complaints = capfd.readouterr().err
    assert complaints.count("ended with status 3 and is started again in") == 2


def test_what_ends_with_a_run_is_started_again_however_often(tmp_path: Path) -> None:
    """Three cancelled runs in a row are no reason to stop a site."""
    log = tmp_path / "log"
    with Children() as children:
        children.start(
            "worker",
            "-c",
            f"print('started', file=open({str(log)!r}, 'a')); raise SystemExit({ENDED_WITH_RUN})",
        )
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not log.exists() or log.read_text().count("started") <= MAX_ENDS:
            assert time.monotonic() < deadline
            children.check()
            time.sleep(0.02)


def test_a_port_that_is_let_go_a_moment_later_is_had() -> None:
    """As by the web workers of a supervisor that was killed."""
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        port = other.getsockname()[1]
        listener = pool.submit(listen, "127.0.0.1", port)
        with pytest.raises(TimeoutError):
            listener.result(timeout=0.2)
        other.close()
        with listener.result(timeout=ENDS_WITHIN_S) as had:
            assert had.getsockname()[1] == port


def refusal(*arguments: str) -> str:
    """The sentence on stderr with which `serve` ends before anything starts."""
    printed, complained = StringIO(), StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("serve", *arguments, stdout=printed, stderr=complained)
    assert (stop.value.code, printed.getvalue()) == (2, "")
    (sentence,) = complained.getvalue().strip().splitlines()
    return sentence


def test_a_taken_port_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"Port {port} of 127.0.0.1" in refusal("--no-demo", "--port", str(port))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "--port 70000"),
        (["--host", "0.0.0.0", "--port", "0"], "Add --no-demo"),
        (["--host", "192.0.2.1", "--no-demo"], "cannot be used"),
    ],
)
def test_bad_options_are_told_in_a_sentence(arguments: list[str], words: str) -> None:
    assert words in refusal(*arguments)


# A whole day of all traffic takes minutes; ``bin/run --check`` computes it. Each further model and
# tier would need sizes of its own, which take longer than all the rest.
SHORT_DEMO = r"""
from django.conf import settings
from planner.config.environment import stored_secret
from planner.inputs import demo
from planner.inputs.scenario.document import edit
from planner.models.workspace import MAIN, use_workspace
from planner.services.demo import demo_ensure
short = {
    "horizon.duration_s": 3600, "policies": ["today", "flat-before"], "test_days": [],
    "forecast": {"method": "last-value", "quantile": "mean"},
    "traffic.sources": [
        {"trace": "TRACE", "series": f"mistral-large-123b / {region} / agent", "scale": 0.1}
        for region in ("us-east", "us-west")
    ],
}
demo.DEMO_SCENARIO = edit(demo.DEMO_SCENARIO, short)
with use_workspace(MAIN):
    login = settings.HEADROOM_DATA_DIR / "demo-login.txt"
    demo_ensure(password=stored_secret(login, random_bytes=12))
"""


@pytest.mark.e2e
def test_the_demo_is_computed_and_shown(another: dict[str, str]) -> None:
    """The whole product without any server: set up, log in, compute an hour, show, stop."""
    quick = ("--verbosity=0", "--skip-checks", "--ignore=widgetbundle.js")
    manage(another, "collectstatic", "--no-input", *quick)
    made = manage(another, "shell", "--no-imports", "--command", SHORT_DEMO)
    assert made.returncode == 0, made.stderr
    done = manage(another, "serve", "--check")
    assert done.returncode == 0, done.stderr
    assert "shows the recommended replicas" in done.stdout
    login = Path(another["HEADROOM_DATA_DIR"]) / "demo-login.txt"
    assert login.stat().st_mode & 0o777 == 0o600
