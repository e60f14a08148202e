"""bin/manage share, its page and its REST view: the same run on all three ways in."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.urls import reverse

from planner.models import Run, User
from planner.services.runs import run_create
from planner.services.worker import run_execute
from tests.planner.domain.sharing.test_share import MODELS, document_text
from tests.planner.management.test_commands import answer, problem
from tests.planner.web.pages import signed_in, text_of

pytestmark = pytest.mark.django_db


def test_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "tail.yml"
    path.write_text(document_text())
    result = answer("share", path, "--by", "memory", "--replays", "1")
    assert result["by"] == "memory"
    assert result["shared"]["gpus"] < result["dedicated"]["gpus"] == len(MODELS)
    assert "--hours 0" in problem("share", path, "--hours", "0")


def test_its_page_and_its_tables(planner: User) -> None:
    run = run_create(
        kind=Run.Kind.SHARE, document=document_text(), options={"replays": 1}, owner=planner
    )
    run = run_execute(run_id=run.pk)
    client = signed_in(planner)
    assert run.result["headline"] in text_of(client.get(reverse("web:run", args=[run.pk])))
    table = client.get(f"/api/v1/runs/{run.pk}/export/?to=csv&table=gpus").content.decode()
    assert len(table.splitlines()) == 1 + len(run.result["gpus"])
