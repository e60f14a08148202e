"""Store, replace and remove own price lists."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from django.db import transaction

from planner.errors import CatalogueError, NotReady
from planner.inputs.catalogue.price_lists import read_price_list
from planner.inputs.scenario.document import outline
from planner.models import PriceList, Scenario, User
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.services.hardware import check_name

MAX_BYTES = 5_000_000


@transaction.atomic
def price_list_save(*, user: User | None, data: bytes, file_name: str, name: str = "") -> PriceList:
    """Store a file's prices under ``name`` (default: the file's name), replacing that list.

    Runs keep the prices that they were made with. Raises CatalogueError.
    """
    check_may_plan(user)
    if len(data) > MAX_BYTES:
        raise CatalogueError(f"{file_name} is larger than {MAX_BYTES:,} bytes. Split it.")
    name = check_name("price list", name.strip() or Path(file_name).stem, {})
    rows = [asdict(row) for row in read_price_list(data, file_name)]
    locked = PriceList.objects.select_for_update().filter(name=name).first()
    if locked is None:
        created = PriceList.objects.create(
            name=name, facts={"prices": rows}, source=file_name[:500], owner=user
        )
        record("price-list.created", created, by=user)
        return created
    locked.facts, locked.source = {"prices": rows}, file_name[:500]
    locked.version += 1
    locked.save()
    record("price-list.changed", locked, by=user, version=locked.version)
    return locked


def price_list_delete(*, row: PriceList, user: User) -> None:
    """Remove a price list; raise NotReady if a scenario names it."""
    check_may_remove(user, row.owner_id, "this price list")
    named = Scenario.objects.filter(document__contains="price_list")
    using = [
        scenario.name
        for scenario in named
        if outline(scenario.document).get("price_list") == row.name
    ]
    if using:
        raise NotReady(
            f"{row.name} is named by {', '.join(using[:5])}. Take it out of price_list there first."
        )
    record("price-list.removed", row, by=user)
    row.delete()
