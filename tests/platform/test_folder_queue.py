"""The broker without a server: order, one holder per message, and nothing lost by a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from tests.platform.conftest import ROOT

TRANSPORT = "planner.config.folder_queue:Transport"
TASKS = 12


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the queue of the test's folder, each time as if in a process of its own."""
    options = {"folder": str(tmp_path), "polling_interval": 0.01}
    with ExitStack() as stack:

        def connect() -> Any:
            connection = stack.enter_context(
                Connection(transport=TRANSPORT, transport_options=options)
            )
            return connection.SimpleQueue("jobs")

        yield connect


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.*"))


def take(jobs: Any) -> Any:
    return jobs.get(block=False)


def test_first_in_first_out_and_gone_when_acknowledged(
    queue: Callable[[], Any], tmp_path: Path
) -> None:
    sender, worker = queue(), queue()
    for number in range(5):
        sender.put({"number": number})
    assert worker.qsize() == 5
    taken = []
    for _ in range(5):
        message = take(worker)
        taken.append(message.payload["number"])
        message.ack()
    assert taken == [0, 1, 2, 3, 4]
    assert not files(tmp_path)
    with pytest.raises(worker.Empty):
        take(worker)


def test_a_message_has_one_holder(queue: Callable[[], Any]) -> None:
    first, other = queue(), queue()
    first.put("a")
    first.put("b")
    assert [take(first).payload, take(other).payload] == ["a", "b"]
    with pytest.raises(other.Empty):
        take(other)


def test_what_is_not_acknowledged_comes_back_in_its_place(queue: Callable[[], Any]) -> None:
    first, other = queue(), queue()
    first.put("a")
    first.put("b")
    take(first)
    first.channel.connection.client.release()
    assert take(other).payload == "a"


def test_rejecting_removes_or_puts_back(queue: Callable[[], Any], tmp_path: Path) -> None:
    jobs = queue()
    jobs.put("a")
    take(jobs).requeue()
    take(jobs).reject()
    assert not files(tmp_path)


def test_purging_spares_what_somebody_holds(queue: Callable[[], Any], tmp_path: Path) -> None:
    first, other = queue(), queue()
    for text in "abc":
        first.put(text)
    held = take(first)
    assert other.clear() == 2
    held.ack()
    assert not files(tmp_path)


def not_messages() -> dict[str, Any]:
    good = {
        "body": "W1tdLCB7fSwge31d",
        "headers": {},
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {"delivery_tag": "x", "delivery_info": {}, "body_encoding": "base64"},
    }
    properties: dict[str, Any] = dict(good["properties"])  # type: ignore[call-overload]
    return {
        "a list": [],
        "a number": 7,
        "nothing": None,
        "without properties": {key: good[key] for key in good if key != "properties"},
        "properties that are a list": good | {"properties": []},
        "a tag that is a list": good | {"properties": properties | {"delivery_tag": []}},
        "a body that is a number": good | {"body": 5},
        "a body that is not base64": good | {"body": "%%%"},
        "a body of another encoding": good | {"properties": properties | {"body_encoding": "rot"}},
        "headers that are text": good | {"headers": "x"},
    }


@pytest.mark.parametrize("what", not_messages())
def test_json_that_is_no_message_is_set_aside(
    queue: Callable[[], Any], tmp_path: Path, what: str
) -> None:
    """It stopped the worker once, and with it the product."""
    sender, worker = queue(), queue()
    sender.put("first")
    take(worker).ack()
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "0.json").write_text(json.dumps(not_messages()[what]))
    sender.put("after")
    assert take(worker).payload == "after"
    assert [path.name for path in files(tmp_path) if path.suffix == ".unreadable"] == [
        "0.unreadable"
    ]


@pytest.mark.e2e
def test_a_killed_worker_loses_no_task(tmp_path: Path) -> None:
    """A real worker, killed in the middle of the work; messages no task can be made of lie
    between the others."""
    environment = {**os.environ, "HEADROOM_QUEUE_TEST": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = tmp_path / "done"
    done.mkdir()
    celery = [sys.executable, "-m", "celery", "--quiet", "--app=tests.platform.queue_app"]

    def start_worker() -> subprocess.Popen[bytes]:
        options = ["--pool=solo", "--without-gossip", "--without-mingle"]
        return subprocess.Popen(
            [*celery, "worker", *options], env=environment, cwd=ROOT, start_new_session=True
        )

    send = "from tests.platform.queue_app import mark\n"
    send += f"for number in range({TASKS}): mark.delay(number)"
    subprocess.run([sys.executable, "-c", send], env=environment, cwd=ROOT, check=True)
    sent = files(tmp_path / "queue")
    assert len(sent) == TASKS
    for number, spoiled in enumerate(
        ({"id": None}, {"task": 5}, {"task": "unheard-of"}, {"eta": "never"}, {"timelimit": 3})
    ):
        message = json.loads(sent[0].read_text())
        message["headers"] |= spoiled
        (sent[0].parent / f"{number}.json").write_text(json.dumps(message))

    first = start_worker()
    wait_for(lambda: len(files(done)) >= 2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    left = len(files(tmp_path / "queue"))
    assert left
    assert left + len(files(done)) >= TASKS

    second = start_worker()
    try:
        wait_for(lambda: len(files(done)) == TASKS and not list(tmp_path.rglob("*.json")))
    finally:
        os.killpg(second.pid, signal.SIGKILL)
        second.wait()


def wait_for(condition: Any, limit_s: float = 180.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "this did not come about in time"
        time.sleep(0.05)


def test_a_message_cut_short_is_set_aside_and_the_next_one_taken(
    queue: Callable[[], Any], tmp_path: Path
) -> None:
    sender, worker = queue(), queue()
    sender.put({"number": 0})
    sender.put({"number": 1})
    broken, _ = files(tmp_path)
    broken.write_text(broken.read_text()[:20])
    message = take(worker)
    assert message.payload == {"number": 1}
    message.ack()
    assert [path.suffix for path in files(tmp_path)] == [".unreadable"]
