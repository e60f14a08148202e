"""bin/manage share, its page and its REST view: the same run on all three ways in."""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from ruamel.yaml import YAML

from planner.domain.options import options_of
from planner.errors import NotReady, OptionsRefused
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
        claims_of(run, MODELS)
    sent = {"to": "modelclaim", "preview": "1", "footprints": " ".join(f"{m}=17" for m in MODELS)}
    page = reverse("web:run-export", args=[run.pk])
    assert "Hugging Face" in text_of(client.get(page, sent))
    empty = {field.name: field.value() for field in client.get(page).context["form"]}
    assert empty["footprints"] == "" and list(empty) == ["namespace", "footprints"]
    with pytest.raises(OptionsRefused):
        options_of(ExportOptions, {"footprints": ["a=17,b=18"]})
    table = client.get(f"/api/v1/runs/{run.pk}/export/?to=csv&table=gpus").content.decode()
    assert len(table.splitlines()) == 1 + len(run.result["gpus"])


def claims_of(run: Run, models: Iterable[str], gib: float = 17) -> list[dict[str, Any]]:
    """Return the claims of a run, with a footprint of ``gib`` for each of ``models``."""
    options = ExportOptions(footprints=tuple(f"{model}={gib}" for model in models))
    file = export_file(run=run, to="modelclaim", options=options, now=NOW)
    return [*YAML(typ="safe", pure=True).load_all(file.content)]


def test_claims_name_a_pool_for_each_shared_gpu(planner: User) -> None:
    document = document_text([f"org/{name}" for name in MODELS])
    run = run_create(kind=Run.Kind.SHARE, document=document, options={"replays": 1}, owner=planner)
    run = run_execute(run_id=run.pk)
    claims = claims_of(run, run_models := [f"org/{name}" for name in MODELS])
    shared = [gpu for gpu in run.result["gpus"] if gpu["way"] != "alone"]
    assert [claim["spec"]["modelName"] for claim in claims] == [
        model for gpu in shared for model in gpu["models"]
    ]
    pools = {str(claim["spec"]["podSelector"]["matchLabels"]) for claim in claims}
    assert len(pools) == len(shared)
    for claim in claims:
        assert not [*faults("ModelClaim", claim)]
        assert claim["spec"]["artifactURL"] == f"huggingface://{claim['spec']['modelName']}"
        for name, value in (
            ("artifactURL", ""), ("engine", "x"), ("replicas", 2), ("gpus", 1), ("perGPU", {}),
            ("engineConfig", {"args": {"--gpu-memory-utilization": "0.9"}}),
        ):  # fmt: skip
            assert [*faults("ModelClaim", {**claim, "spec": {**claim["spec"], name: value}})]
    # A page of 131,072 bytes a token holds 16 tokens, and a floor is the longest request.
    rows = {row["model"]: row for row in run.result["models"]}
    for claim in claims:
        spec, row = claim["spec"], rows[claim["spec"]["modelName"]]
        assert spec["engineConfig"]["args"] == {"--max-model-len": str(row["longest_tokens"])}
        pages = ceil(row["longest_tokens"] * 131_072 / 2**22)
        assert spec["perGPU"] == {"maximumFootprint": "17408Mi", "kvFloor": f"{4 * pages}Mi"}
    with pytest.raises(NotReady, match="org/d"):
        claims_of(run, run_models[:3])
    with pytest.raises(NotReady, match="other"):
        claims_of(run, [*run_models, "other"])
    with pytest.raises(NotReady, match="GiB of"):
        claims_of(run, run_models, gib=25)
