"""Fifty people at once with runs going: does a page fail, how long does one take, who is starved?

    python -m bench.load [--json] [--users 50] [--runs 10] [--minutes 10] [--cells 200] [--seed 0]

A product of its own in a temporary folder (SQLite, queue in a folder, its default workers). Each
person opens a page, reads it for ``THINKS_S`` and opens the next; ``runs`` comparisons are kept
going or waiting, and one person's sweep of ``cells`` is in the queue from the beginning and again
whenever it is through. Every half minute somebody uploads a small trace.

- ``errors``: answers that were none, or of status 400 and above, and runs that did not complete.
- ``page_p95_ms``: 95th percentile over all pages, from the request to the whole answer.
- ``starved_seconds``: the longest time from such an upload to its trace being ready.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from bench.chaos import EXAMPLE, HORIZON
from bench.product import Product, fresh_folder

THINKS_S = (2.0, 6.0)
UPLOAD_EVERY_S = 30.0
UPLOAD_ROWS = 1_000
ENDS_WITHIN_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    with fresh_folder("load"):
        import django

        django.setup()
        from planner.models.workspace import MAIN, use_workspace

        with use_workspace(MAIN):
            figures = measure(args)
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    asker = Asker(args.users, args.cells)
    product = Product(dict(os.environ))
    people = [Person(product.address, cookie, asker.pages) for cookie in asker.cookies]
    try:
        for person in people:
            person.start()
        uploads = _keep_going(asker, args.runs, 60.0 * args.minutes)
        for person in people:
            person.over.set()
        for person in people:
            person.join()
        waits = _waits(uploads)
    finally:
        product.stop()
    took = sorted(ms for person in people for ms in person.took_ms)
    errors = [sentence for person in people for sentence in person.errors] + asker.failed_runs()
    for sentence in errors[:20]:
        print(sentence, file=sys.stderr)
    return {
        "errors": len(errors),
        "page_p95_ms": round(took[math.ceil(0.95 * len(took)) - 1], 1),
        "page_p50_ms": round(took[len(took) // 2], 1),
        "starved_seconds": round(max(waits), 1),
        "pages": len(took),
        "runs_completed": asker.count_completed_runs(),
        "users": args.users,
        "runs": args.runs,
        "cells": args.cells,
        "minutes": args.minutes,
    }


def _keep_going(asker: Asker, runs: int, seconds: float) -> list[int]:
    asker.keep(runs)
    asker.wait_until_running()
    began, uploads = time.monotonic(), [asker.upload()]
    while (past := time.monotonic() - began) < seconds:
        asker.keep(runs)
        if past > UPLOAD_EVERY_S * len(uploads):
            uploads.append(asker.upload())
        time.sleep(1.0)
    return uploads


def _waits(uploads: list[int]) -> list[float]:
    """Return the seconds until each upload was done; after two minutes, waiting ends."""
    from planner.models import Run

    deadline = time.monotonic() + ENDS_WITHIN_S
    rows = Run.objects.filter(pk__in=uploads)
    while rows.filter(finished_at=None).exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    waits = [
        (row.finished_at - row.created_at).total_seconds() if row.finished_at else ENDS_WITHIN_S
        for row in rows
    ]
    print(f"uploads took {[round(wait, 1) for wait in waits]} s", file=sys.stderr)
    return waits


class Asker:
    """Who asks for runs, on the database itself, and what the others read."""

    def __init__(self, users: int, cells: int) -> None:
        from planner.inputs.ingest import IngestOptions
        from planner.inputs.scenario.document import with_traces
        from planner.models import User
        from planner.services.scenarios import scenario_create
        from planner.services.traces import trace_ingest_path

        made = [
            User.objects.create_user(f"user-{i}", role=User.Role.PLANNER) for i in range(users + 2)
        ]
        self.cookies = [_signed_in(user) for user in made[:users]]
        self._sweeper, self._uploader = made[users:]
        self._others, self._cells = made[:users], cells
        week = trace_ingest_path(path=EXAMPLE / "small-week.csv", options=IngestOptions())
        text = (EXAMPLE / "first-plan.yml").read_text(encoding="utf-8") + HORIZON
        self._document = with_traces(text, {0: week.name})
        scenario = scenario_create(owner=made[0], document=self._document)
        first = self._run(made[0], scenario)
        self.pages = [
            "/", "/traces/", f"/traces/{week.name}/", "/scenarios/", f"/scenarios/{scenario.pk}/",
            "/runs/", f"/runs/{first}/", "/hardware/profiles/",
            "/api/v1/runs/", f"/api/v1/runs/{first}/",
        ]  # fmt: skip
        self._asked: list[int] = [first]

    def _run(self, user: Any, scenario: Any) -> int:
        from planner.models import Run
        from planner.services.scenarios import scenario_run
        from planner.services.worker import run_execute

        run = scenario_run(scenario=scenario, owner=user, kind=Run.Kind.PLAN)
        return run_execute(run_id=run.pk).pk

    def upload(self) -> int:
        """Upload a small trace; return the number of its run."""
        from planner.inputs.ingest import IngestOptions
        from planner.services.traces import trace_upload

        name = f"upload-{len(self._asked)}.csv"
        rows = "".join(f"{second},{100 + len(self._asked)},10\n" for second in range(UPLOAD_ROWS))
        content = f"timestamp,input_tokens,output_tokens\n{rows}".encode()
        options = IngestOptions(name=name)
        _, run, _ = trace_upload(
            owner=self._uploader, chunks=[content], file_name=name, options=options
        )
        assert run is not None
        self._asked.append(run.pk)
        return run.pk

    def keep(self, runs: int) -> None:
        """Keep so many comparisons going or waiting, and the cells of a sweep."""
        from planner.domain.whatif.settings import Axis
        from planner.models import Run
        from planner.services.whatif import sweep_create

        open_ = Run.objects.filter(state__in=(Run.State.PENDING, Run.State.RUNNING))
        for _ in range(open_.filter(sweep=None, kind=Run.Kind.COMPARE).count(), runs):
            self._compare(random.choice(self._others))
        if self._cells and not open_.exclude(sweep=None).exists():
            scales = tuple(round(0.5 + i / self._cells, 4) for i in range(self._cells))
            axes = [Axis("traffic.sources.0.scale", scales)]
            sweep_create(owner=self._sweeper, document=self._document, axes=axes)

    def _compare(self, user: Any) -> None:
        from planner.models import Run
        from planner.services.runs import run_create

        run = run_create(owner=user, kind=Run.Kind.COMPARE, document=self._document)
        self._asked.append(run.pk)

    def wait_until_running(self) -> None:
        """Wait until the workers have begun: their own start is not a wait for a worker."""
        from planner.models import Run

        deadline = time.monotonic() + ENDS_WITHIN_S
        running = Run.objects.filter(state=Run.State.RUNNING)
        while not running.exists() and time.monotonic() < deadline:
            time.sleep(0.5)

    def failed_runs(self) -> list[str]:
        from planner.models import Run

        rows = Run.objects.filter(state__in=(Run.State.FAILED, Run.State.ERRORED))
        return [f"run {row.pk}: {row.problem} {row.traceback}" for row in rows]

    def count_completed_runs(self) -> int:
        from planner.models import Run

        return Run.objects.filter(state=Run.State.COMPLETED).count()


class Person(threading.Thread):
    """Opens one page after the other, each over a connection of its own: the server ends idle
    ones sooner than a page is read."""

    def __init__(self, address: str, cookie: str, pages: list[str]) -> None:
        super().__init__(daemon=True)
        self._host, self._pages = urlsplit(address).netloc, pages
        self._headers = {"Cookie": cookie, "Accept-Encoding": "gzip"}
        self.over = threading.Event()
        self.took_ms: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        chance = random.Random(self.name)
        while not self.over.wait(chance.uniform(*THINKS_S)):
            page = chance.choice(self._pages)
            began = time.perf_counter()
            link = http.client.HTTPConnection(self._host, timeout=60)
            try:
                link.request("GET", page, headers=self._headers)
                answer = link.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as problem:
                self.errors.append(f"{page}: {problem!r}")
                continue
            finally:
                link.close()
            self.took_ms.append(1e3 * (time.perf_counter() - began))
            if answer.status != 200:
                self.errors.append(f"{page}: {answer.status}")


def _signed_in(user: Any) -> str:
    """Return the cookie of a new session of a user."""
    from django.conf import settings
    from django.contrib import auth

    from planner.services.sessions import SessionStore

    session = SessionStore()
    session[auth.SESSION_KEY] = str(user.pk)
    session[auth.BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[auth.HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return f"{settings.SESSION_COOKIE_NAME}={session.session_key}"


if __name__ == "__main__":
    main()
