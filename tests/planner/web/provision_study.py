"""A completed provisioning run of a kept scenario, for pages and REST views that show one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from planner.management.runs import load_scenario
from planner.models import Run, User
from planner.models.workspace import current_workspace_id
from planner.services import provisioning
from planner.services.runs import run_create
from planner.services.worker import run_execute
from planner.storage import row_arrays
from simulation.provisioning.level import Level
from simulation.provisioning.level_confirmation import Confirmation
from simulation.provisioning.levels import plan_level
from tests.planner.coarse import coarse_replays, coarse_sizes
from tests.single_run import once

EXAMPLE = Path(__file__).parents[3] / "docs/examples/first-plan.yml"
BUSY = ("scale: 2", "scale: 7")  # so that operators pay
POINTS = {
    "RATES": (10, 160),
    "LENGTHS": (512, 4096),
    "SENSITIVITY_LENGTHS": (512, 65_536),
    "FAMILY": ("qwen2-0.5b", "qwen2-7b"),
}
AN_HOUR = "horizon: {start: 2024-05-21T14:00:00Z, duration_s: 3600}\n"


def provisioned(
    owner: User, tmp_path: Path, *, busy: bool = True, short: bool = False, **options: Any
) -> Run:
    """Provision ``first-plan.yml`` at every level, at several times its traffic, on its day or an
    hour of it.

    Busy, finer levels are taken even if whole replicas are better, so that the page has operators
    and devices to show.
    """
    text = EXAMPLE.read_text(encoding="utf-8") + (AN_HOUR if short else "")
    path = tmp_path / "plan.yml"
    path.write_text(text.replace(*BUSY) if busy else text, encoding="utf-8")
    (tmp_path / "small-week.csv").write_bytes(EXAMPLE.with_name("small-week.csv").read_bytes())
    document, name = load_scenario(str(path), lambda *_: None)
    run = run_create(
        owner=owner,
        kind=Run.Kind.PROVISION,
        document=document,
        name=name,
        options=options,
        enqueue=False,
    )
    confirmed = patch.object(Confirmation, "level", _alone if busy else Confirmation.level)
    with coarse_sizes(), coarse_replays(), confirmed:
        return run_execute(run_id=run.pk, raise_errors=True)


@contextmanager
def few_points() -> Iterator[None]:
    """Two points in every sweep and response, 4 to 9 in the product."""
    with pytest.MonkeyPatch.context() as patch:
        for name, points in POINTS.items():
            patch.setattr(provisioning, name, points)
        yield


def provisioned_once(owner: User, tmp_path: Path) -> Run:
    """``provisioned``, carried out once for all processes and copied for who asks again: rows and
    files as they were when it ended."""
    made: list[Run] = []

    def make() -> tuple[dict[str, Any], dict[str, bytes]]:
        run = provisioned(owner, tmp_path)
        made.append(run)
        there = row_arrays.data_dir() / run.store
        files = {file.name: file.read_bytes() for file in there.iterdir() if file.is_file()}
        fields = {
            column.attname: getattr(run, column.attname) for column in Run._meta.concrete_fields
        }
        return fields, files

    fields, files = once("provisioned", make)
    if made:
        return made[0]
    del fields["id"]
    here = {"owner_id": owner.pk, "workspace_id": current_workspace_id()}
    run = Run.objects.create(**fields | here)
    run.store = f"runs/{run.pk}"
    run.save()
    there = row_arrays.data_dir() / run.store
    there.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (there / name).write_bytes(content)
    return run


def _alone(self: Confirmation, name: str, *_: Any) -> Level | None:
    return plan_level(name, self.phase, self.replay.device_bytes, proofs=True)
