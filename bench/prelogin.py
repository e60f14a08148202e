"""What a stranger gets before the log-in: bytes that are read, answers, guesses at passwords.

    python -m bench.prelogin [--json] [--seconds S] [--methods POST,GET]

Starts gunicorn as `bin/run` does, on a data folder of its own, and asks every address of the URL
tables as a stranger, with an unknown token and with a session that has expired.

- ``addresses``: addresses asked, each with every method and each of the three credentials.
- ``bytes_read_before_login_max``: most bytes of a request with a body of 50 MB that the server's
  kernel took. It is an upper bound of what the server read: the receive buffer of the socket, which
  is made small here, is part of it.
- ``escapes``: addresses, but for the public ones of ``planner.config.public_addresses``, that
  answer such a request, or a stranger's without a body, with 2xx, or read over
  MAX_BODY_BYTES_SIGNED_OUT.
  Addresses that answer nothing at all are among them.
- ``login_attempts_per_minute_max``: most guesses that were sent and tried within any minute, by
  form and API together, with a new name and new forwarded headers each time.
- ``bytes_read_after_login``: of an upload of 2 MB by somebody who has signed in: the check that
  bytes which are read are counted.
"""

import argparse
import http.cookiejar
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.product import ROOT, fresh_folder

BODY_BYTES = 50_000_000
BUFFER_BYTES = 8_192  # of the server's sockets; the kernel doubles it
UPLOAD_BYTES = 2_000_000
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE")
ACKNOWLEDGED = slice(120, 128)  # tcpi_bytes_acked in Linux's struct tcp_info
NAME, PASSWORD = "owner", "a phrase that is long 7"
WAITS_S = 180.0
PARALLEL = 6
GOALS = {
    "bytes_read_before_login_max": 65_536, "escapes": 0, "login_attempts_per_minute_max": 60
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    status: int  # 0: the connection ended without one
    bytes_taken: int  # by the server's kernel, headers included


@dataclass(frozen=True, slots=True)
class Credentials:
    session: str  # cookie of a session that is valid
    expired: str  # of one that has expired
    token: str
    csrf: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=80, help="for which passwords are guessed")
    parser.add_argument("--methods", default=",".join(METHODS), help="that bodies are sent with")
    args = parser.parse_args()
    with fresh_folder("prelogin"):
        figures = bench(args.seconds, args.methods.split(","))
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        goal = f"  (goal: at most {GOALS[name]:,})" if name in GOALS else ""
        print(f"{name:30} {value}{goal}")


def bench(seconds: float, methods: list[str]) -> dict[str, Any]:
    """Return the figures; the environment names an empty, migrated data folder."""
    import django

    django.setup()
    credentials = prepare()
    with serve_site() as port:
        walked = walk(port, addresses(), methods, credentials)
        uploaded = upload(port, credentials)
        tried = guesses_per_minute(port, seconds)
    return walked | {
        "login_attempts_per_minute_max": tried,
        "bytes_read_after_login": uploaded,
    }


def prepare() -> Credentials:
    """Make a person with a session that is valid, one that has expired, and a token."""
    from datetime import timedelta

    from django.test import Client
    from django.utils import timezone

    from planner.models import Session, User
    from planner.models.workspace import MAIN, use_workspace
    from planner.services.tokens import token_create

    with use_workspace(MAIN):
        owner = User.objects.create_user(NAME, password=PASSWORD, role="admin")
        token = token_create(user=owner).key
    cookies = []
    for _ in range(2):
        client = Client()
        client.force_login(owner)
        cookies.append(client.cookies["headroom_session"].value)
        if len(cookies) == 1:
            Session.objects.update(expire_date=timezone.now() - timedelta(hours=1))
    page = Client(SERVER_NAME="127.0.0.1")
    page.get("/login/")
    return Credentials(cookies[1], cookies[0], token, page.cookies["headroom_csrf"].value)


def addresses() -> dict[str, str]:
    """Return the path of each view, by its name; things that do not exist stand for all."""
    from django.urls import URLPattern, URLResolver, get_resolver

    paths: dict[str, str] = {}

    def collect(patterns: Any, prefix: str, names: str) -> None:
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                inner = f"{names}{pattern.namespace}:" if pattern.namespace else names
                collect(pattern.url_patterns, route, inner)
            elif isinstance(pattern, URLPattern):
                filled = re.sub(r"<int:\w+>", "1", route)
                filled = re.sub(r"<(\w+:)?\w+>", "nothing", filled)
                name = names + (pattern.name or "anything-else")
                paths[name] = f"/{filled}" if pattern.name else f"/{filled}nowhere/"

    collect(get_resolver().url_patterns, "", "")
    return paths | {"nowhere": "/nowhere/", "static": "/static/nothing.js"}


@contextmanager
def serve_site() -> Iterator[int]:
    """Serve the site as `bin/run` does, and yield its port. Its sockets have small buffers."""
    from planner.config.supervisor import web_command

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    port = listener.getsockname()[1]
    log = Path(os.environ["HEADROOM_DATA_DIR"]) / "web.log"  # thousands of refusals
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, *web_command(listener)],
            cwd=ROOT, pass_fds=[listener.fileno()], stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until = time.monotonic() + WAITS_S
        while send(port, "GET", "/healthz", {}, 0).status != 200:
            if time.monotonic() > until or server.poll() is not None:
                raise SystemExit(f"The web server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait(timeout=30)
        listener.close()


def walk(
    port: int, paths: dict[str, str], methods: list[str], known: Credentials
) -> dict[str, Any]:
    """Ask every address in every way; return the figures and what escaped."""
    from planner.config.public_addresses import MAX_BODY_BYTES_SIGNED_OUT, PUBLIC

    csrf = {"X-CSRFToken": known.csrf, "Cookie": f"headroom_csrf={known.csrf}"}
    whose: dict[str, dict[str, str]] = {
        "a stranger": {"Cookie": csrf["Cookie"]},
        "an unknown token": csrf | {"Authorization": "Token bogus"},
        "an expired session": csrf
        | {"Cookie": f"{csrf['Cookie']}; headroom_session={known.expired}"},
    }
    cases = [
        (view, path, method, who, headers | MULTIPART, BODY_BYTES)
        for view, path in paths.items()
        for who, headers in whose.items()
        for method in methods
    ]
    bodiless = ("GET", "a stranger", whose["a stranger"] | MULTIPART, 0)
    cases += [(view, path, *bodiless) for view, path in paths.items()]

    def case(parts: tuple[str, str, str, str, dict[str, str], int]) -> tuple[str, int]:
        view, path, method, who, headers, size = parts
        answer = send(port, method, path, headers, size)
        shown = 200 <= answer.status < 300 and view not in PUBLIC
        if shown or answer.status == 0 or answer.bytes_taken > MAX_BODY_BYTES_SIGNED_OUT:
            told = f"{method} {path} of {who}, {size:,} bytes: {answer}"
            print(told, file=sys.stderr)
            return view, answer.bytes_taken
        return "", answer.bytes_taken

    with ThreadPoolExecutor(PARALLEL) as threads:
        results = list(threads.map(case, cases))
    return {
        "addresses": len(paths),
        "requests": len(cases),
        "bytes_read_before_login_max": max(taken for _, taken in results),
        "escapes": len({view for view, _ in results if view}),
    }


def send(port: int, method: str, path: str, headers: dict[str, str], size: int) -> Answer:
    """Send a request with a file of about ``size`` bytes until it is answered, as curl does."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {size}", "", ""]
    zeros, answer = memoryview(bytes(1_000_000)), b""
    to_send = memoryview("\r\n".join(lines).encode() + FILE[:size])
    size = max(0, size - len(FILE))
    try:
        client = socket.create_connection(("127.0.0.1", port), timeout=WAITS_S)
    except OSError:
        return Answer(0, 0)
    with client:
        client.setblocking(False)
        until = time.monotonic() + WAITS_S
        while b"\r\n\r\n" not in answer and time.monotonic() < until:
            wants = [client] if to_send else []
            readable, writable, _ = select.select([client], wants, [], WAITS_S)
            if readable:
                try:
                    part = client.recv(65_536)
                except OSError:
                    break
                if not part:
                    break
                answer += part
            elif writable:
                with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                    sent = client.send(to_send)
                    to_send = to_send[sent:]
                if not to_send and size > 0:
                    to_send = zeros[: min(size, len(zeros))]
                    size -= len(to_send)
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    status = re.match(rb"HTTP/1\.\d (\d{3})", answer)
    taken = int.from_bytes(info[ACKNOWLEDGED], sys.byteorder)
    return Answer(int(status[1]) if status else 0, taken)


def upload(port: int, known: Credentials) -> int:
    """Return how many bytes were read of an upload of somebody who has signed in."""
    cookies = f"headroom_csrf={known.csrf}; headroom_session={known.session}"
    headers = MULTIPART | {"Cookie": cookies}
    answer = send(port, "POST", "/traces/upload/", headers, UPLOAD_BYTES)
    if answer.bytes_taken < UPLOAD_BYTES:
        raise SystemExit(f"The server did not read an upload of somebody known: {answer}.")
    return answer.bytes_taken


def guesses_per_minute(port: int, seconds: float) -> int:
    """Guess for ``seconds`` by form and API; return the most that were tried in a minute."""
    tried: list[tuple[float, float]] = []  # when each was sent, and answered
    numbers, lock = count(), threading.Lock()
    until = time.monotonic() + seconds

    def guess_on() -> None:
        while time.monotonic() < until:
            with lock:
                number = next(numbers)
            sent = time.monotonic()
            if (_by_form if number % 2 else _by_api)(port, number):
                tried.append((sent, time.monotonic()))
            elif number % 10 == 0:
                time.sleep(0.2)  # refused: leave the processors to others

    threads = [threading.Thread(target=guess_on) for _ in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(
        (
            sum(began <= sent and answered < began + 60 for sent, answered in tried)
            for began, _ in tried
        ),
        default=0,
    )


def _forged_headers(number: int) -> dict[str, str]:
    address = f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}"
    return {
        "X-Forwarded-For": f"{address}, {address}", "X-Real-IP": address,
        "Forwarded": f"for={address}", "True-Client-IP": address, "Client-IP": address,
    }  # fmt: skip


def _by_api(port: int, number: int) -> bool:
    """Return whether the guess was tried."""
    body = json.dumps({"username": f"name-{number}", "password": "Spring-2026"}).encode()
    headers = _forged_headers(number) | {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/api/v1/token/"
    try:
        _opener().open(urllib.request.Request(url, body, headers), timeout=WAITS_S).close()
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return refusal.code == 401
    return True


def _by_form(port: int, number: int) -> bool:
    url = f"http://127.0.0.1:{port}/login/"
    opener = _opener()
    page = opener.open(url, timeout=WAITS_S).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    fields = {"username": f"name-{number}", "password": "Spring-2026"}
    fields["csrfmiddlewaretoken"] = token[1] if token else ""
    body = urllib.parse.urlencode(fields).encode()
    answer = opener.open(
        urllib.request.Request(url, body, _forged_headers(number)), timeout=WAITS_S
    )
    return "Too many wrong passwords" not in answer.read().decode()


def _opener() -> urllib.request.OpenerDirector:
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)


if __name__ == "__main__":
    main()
