"""bin/manage share, its page and its REST view: the same run on all three ways in."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.urls import reverse
from ruamel.yaml import YAML

from planner.errors import NotReady
from planner.models import Run, User
from planner.outputs.files import export_file
from planner.outputs.options import ExportOptions
from planner.outputs.validation import faults
from planner.services.runs import run_create
from planner.services.worker import run_execute
from tests.planner.domain.sharing.test_share import MODELS, document_text
from tests.planner.management.calling import answer, problem
from tests.planner.web.pages import signed_in, text_of

NOW = datetime(2026, 3, 2, tzinfo=UTC)
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
    with pytest.raises(NotReady, match="Hugging Face"):
        export_file(run=run, to="modelclaim", options=ExportOptions(), now=NOW)
    table = client.get(f"/api/v1/runs/{run.pk}/export/?to=csv&table=gpus").content.decode()
    assert len(table.splitlines()) == 1 + len(run.result["gpus"])


def test_claims_name_a_pool_for_each_shared_gpu(planner: User) -> None:
    document = document_text([f"org/{name}" for name in MODELS])
    run = run_create(kind=Run.Kind.SHARE, document=document, options={"replays": 1}, owner=planner)
    run = run_execute(run_id=run.pk)
    file = export_file(run=run, to="modelclaim", options=ExportOptions(), now=NOW)
    claims = [*YAML(typ="safe", pure=True).load_all(file.content)]
    shared = [gpu for gpu in run.result["gpus"] if gpu["way"] != "alone"]
    assert [claim["spec"]["modelName"] for claim in claims] == [
        model for gpu in shared for model in gpu["models"]
    ]
    pools = {str(claim["spec"]["podSelector"]["matchLabels"]) for claim in claims}
    assert len(pools) == len(shared)
    for claim in claims:
        assert not [*faults("ModelClaim", claim)]
        assert claim["spec"]["artifactURL"] == f"huggingface://{claim['spec']['modelName']}"
        for name, value in (("artifactURL", ""), ("engine", "x"), ("replicas", 2), ("gpus", 1)):
            assert [*faults("ModelClaim", {**claim, "spec": {**claim["spec"], name: value}})]
