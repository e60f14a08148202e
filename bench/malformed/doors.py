"""The ways in: command line, REST and forms; what came of what was sent through one."""

from __future__ import annotations

import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client

from bench.bodies import Action, send
from planner.models import Run, User
from planner.models.workspace import MAIN, current_workspace, enter
from planner.services.worker import run_execute

NAME = "malformed"


@dataclass(frozen=True, slots=True)
class Answer:
    """``status``: of HTTP, or the exit status of a command."""

    status: int
    sentence: str
    escaped: bool  # a server error, a traceback, or a run that met a bug

    @staticmethod
    def of_http(response: Any) -> Answer:
        text = b"".join(response) if response.streaming else response.content
        words = text.decode("utf-8", "replace")
        escaped = response.status_code == 500 or "Traceback (most recent" in words
        return Answer(response.status_code, _sentence(words, response), escaped)


def _sentence(text: str, response: Any) -> str:
    if "json" in response.get("Content-Type", ""):
        body = response.json()
        if isinstance(body, dict):
            return str(body.get("detail") or body.get("problem") or "taken")
        return "taken"
    for mark in ('class="problem', 'role="alert"', 'class="errorlist', 'id="messages"'):
        if mark in text:
            part = text.split(mark, 1)[1].split(">", 1)[1][:1500]
            words = " ".join(_without_tags(part).split())
            if words:
                return words
    return "taken" if response.status_code < 400 else text[:200]


def _without_tags(text: str) -> str:
    out, inside = [], False
    for character in text:
        if character in "<>":
            inside = character == "<"
            out.append(" ")
        elif not inside:
            out.append(character)
    return "".join(out)


class Doors:
    """One planner at all doors, with a folder for files."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="malformed-"))
        enter(MAIN)
        self.user, _ = User.objects.get_or_create(username=NAME)
        self.user.join(current_workspace(), User.Role.PLANNER)
        self._client = Client(raise_request_exception=False, SERVER_NAME="localhost")
        self._client.force_login(self.user)
        self._number = 0

    def file(self, name: str, content: bytes) -> Path:
        self._number += 1
        path = self.folder / str(self._number) / name
        path.parent.mkdir()
        path.write_bytes(content)
        return path

    def command(self, *arguments: str) -> Answer:
        printed, complained = io.StringIO(), io.StringIO()
        try:
            call_command(*arguments, "--json", stdout=printed, stderr=complained)
        except SystemExit as ended:
            status = int(ended.code or 0)
            words = complained.getvalue().strip()
            return Answer(status, words, status not in (0, 2, 3) or "Traceback" in words)
        except BaseException as bug:
            if isinstance(bug, KeyboardInterrupt | TimeoutError):
                raise
            return Answer(1, f"{type(bug).__name__}: {bug}", "CommandError" not in repr(type(bug)))
        return Answer(0, "taken", False)

    def ingest(self, name: str, content: bytes, *more: str) -> Answer:
        return self.command("ingest", str(self.file(name, content)), *more)

    def get(self, path: str) -> Answer:
        return Answer.of_http(self._client.get(path))

    def json(self, path: str, body: str | bytes, method: str = "post") -> Answer:
        send = getattr(self._client, method)
        return self._answer_after_run(send(path, body, content_type="application/json"))

    def undone(self, action: Action, body: Any) -> Answer:
        return Answer.of_http(send(self._client, action, body))

    def yaml(self, path: str, body: str) -> Answer:
        return self._answer_after_run(
            self._client.post(path, body, content_type="application/yaml")
        )

    def form(self, path: str, **fields: Any) -> Answer:
        return self._answer_after_run(self._client.post(path, fields))

    def upload(self, path: str, file_name: str, content: bytes, **fields: Any) -> Answer:
        return self.form(path, file=SimpleUploadedFile(file_name, content), **fields)

    def _answer_after_run(self, response: Any) -> Answer:
        """Execute the run that a request started; return an answer with its errors too."""
        answer = Answer.of_http(response)
        for run in Run.objects.filter(owner=self.user, state=Run.State.PENDING):
            ended = run_execute(run_id=run.pk)
            errored = ended.state == Run.State.ERRORED
            answer = Answer(
                answer.status, ended.problem or answer.sentence, answer.escaped or errored
            )
        return answer

    def pipe(self) -> Path:
        self._number += 1
        path = self.folder / f"{self._number}.csv"
        os.mkfifo(path)
        return path
