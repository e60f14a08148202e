"""Store, change and remove own GPUs and models; descriptions are checked before they are stored."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import F

from planner.errors import CatalogueError, NotFound, NotReady, VersionConflict
from planner.inputs import catalogue
from planner.inputs.catalogue import user_hardware
from planner.inputs.catalogue.price_lists import read_price_list
from planner.models import OwnGpu, OwnModel, PriceList, Profile, User
from planner.selectors.hardware_rows import spec_facts
from planner.selectors.scenarios import scenarios_with
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from simulation.performance.specs import KINDS, ModelSpec, Provenance

MAX_BYTES = 5_000_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*")
RESERVED = ("new",)  # in addresses of pages, this word stands in the place of a name
NAME_CHARACTERS = 80
SOURCE_CHARACTERS = 500
ASSUMED = "assumed"
OwnRow = TypeVar("OwnRow", OwnGpu, OwnModel)


def gpu_save(
    *,
    user: User | None,
    name: str,
    facts: Mapping[str, Any],
    source: str = "",
    kind: str = ASSUMED,
    row: OwnGpu | None = None,
    version: int | None = None,
) -> OwnGpu:
    """Store a new GPU type, or change the one in ``row`` (None: a new one).

    ``facts`` has the fields of catalogue.user_hardware; ``kind`` and ``source`` say where they come
    from. ``version`` is the version that the user edited; None: any. Raises CatalogueError with the
    wrong field, and VersionConflict if the version has changed.
    """
    check_may_plan(user)
    name = check_name("GPU", name, catalogue.gpus())
    spec = user_hardware.gpu_spec(name, facts, _provenance(kind, source, user))
    return _save(OwnGpu, row, name, spec_facts(spec), spec.provenance, user, version)


def model_save(
    *,
    user: User | None,
    name: str,
    facts: Mapping[str, Any] | ModelSpec,
    source: str = "",
    kind: str = ASSUMED,
    row: OwnModel | None = None,
    version: int | None = None,
) -> OwnModel:
    """Store a new model, or change the one in ``row`` (None: a new one); see ``gpu_save``.

    ``facts`` has the fields of catalogue.user_hardware, or is the spec of the whole model.
    """
    check_may_plan(user)
    name = check_name("model", name, catalogue.models())
    provenance = _provenance(kind, source, user)
    if isinstance(facts, ModelSpec):
        shape = replace(facts.shape, name=name) if facts.shape else None
        spec = replace(facts, name=name, shape=shape, provenance=provenance)
    else:
        spec = user_hardware.model_spec(name, facts, provenance)
    return _save(OwnModel, row, name, spec_facts(spec), spec.provenance, user, version)


def check_name(noun: str, name: str, built_in: Mapping[str, Any]) -> str:
    """Return ``name``, stripped; raise CatalogueError if it is invalid or among ``built_in``.

    ``noun`` is what has the name, such as "GPU", for the message.
    """
    name = name.strip()
    if not NAME.fullmatch(name) or len(name) > NAME_CHARACTERS or name in RESERVED:
        raise CatalogueError(
            f"The {noun} cannot be named {name[:100]!r}. A name begins with a letter or digit and "
            f"has at most {NAME_CHARACTERS} letters, digits, blanks and . _ + -."
        )
    if name in built_in:
        raise CatalogueError(f"{name} is a built-in {noun}. Choose another name for your own.")
    return name


def _provenance(kind: str, source: str, user: User | None) -> Provenance:
    """Return the provenance of figures that a user gives; raise CatalogueError if invalid.

    ``kind`` is one of KINDS, such as "measured". ``source`` "" stands for the user.
    """
    if kind not in KINDS:
        raise CatalogueError(f"kind {kind!r} is not known. Choose from {', '.join(KINDS)}.")
    stated = source.strip()
    if len(stated) > SOURCE_CHARACTERS:
        raise CatalogueError(f"source: at most {SOURCE_CHARACTERS} characters, not {len(stated)}.")
    return Provenance(kind, stated or f"given by {user.username if user else 'the command line'}")


def _save(
    model: type[OwnRow],
    previous: OwnRow | None,
    name: str,
    facts: dict[str, Any],
    provenance: Provenance,
    user: User | None,
    version: int | None,
) -> OwnRow:
    """Store a new row, or the next version of ``previous``.

    Raises VersionConflict if somebody else changed it meanwhile. Raises NotReady if the name would
    change while something uses it.
    """
    columns = {"facts": facts, "kind": provenance.kind, "source": provenance.source}
    with transaction.atomic():
        if previous is None:
            row = model(name=name, owner=user, **columns)
        else:
            row = _locked(previous, name, version)
            row.name, row.version = name, row.version + 1
            for column, value in columns.items():
                setattr(row, column, value)
        try:
            with transaction.atomic():
                row.save()
        except IntegrityError:
            raise CatalogueError(f"{name!r} already exists. Choose another name.") from None
        record(f"{_noun(row)}.kept", row, by=user, version=row.version)
    return row


def _locked(previous: OwnRow, name: str, version: int | None) -> OwnRow:
    """Lock and return the stored row of ``previous``; ``version`` is the one seen, None: any."""
    rows = type(previous)._default_manager.select_for_update()
    current = rows.filter(pk=previous.pk).first()
    if current is None:
        raise NotFound(f"{previous.name} was removed while you edited it. Add it again.")
    if version is not None and version != current.version:
        raise VersionConflict(
            f"{current.name} was changed by another person while you edited it. Load it "
            "again and repeat your changes."
        )
    if name != current.name:
        used_by = _used_by(current)
        if used_by:
            raise NotReady(f"{current.name} cannot be renamed: it is used by {used_by}.")
    return current


def hardware_delete(*, row: OwnGpu | OwnModel, user: User) -> None:
    """Remove a user's own GPU type or model; raise NotReady if something uses it."""
    noun = _noun(row)
    check_may_remove(user, row.owner_id, f"this {'GPU' if noun == 'gpu' else noun}")
    if used_by := _used_by(row):
        raise NotReady(f"{row.name} is used by {used_by}. Change or remove that first.")
    record(f"{noun}.removed", row, by=user)
    row.delete()


def _noun(row: OwnGpu | OwnModel) -> str:
    return "gpu" if isinstance(row, OwnGpu) else "model"


def _used_by(row: OwnGpu | OwnModel) -> str:
    """Return in words at most five profiles and scenarios that use the row; "" if none does."""
    fact = {_noun(row): row.name}
    profiles = Profile.objects.filter(**fact).values_list("name", flat=True)
    used_by = [f"profile {name}" for name in profiles]
    used_by += [f"scenario {name}" for name in scenarios_with_profile(**fact)]
    return ", ".join(used_by[:5])


def scenarios_with_profile(**fact: str) -> list[str]:
    """Return the names of scenarios that have a profile row with ``fact``, such as gpu="H100"."""

    def has_fact(document: Mapping[str, Any]) -> bool:
        """Return whether a profile row of the scenario document has all of ``fact``."""
        rows = [row for row in document.get("profiles") or [] if isinstance(row, Mapping)]
        return any(fact.items() <= row.items() for row in rows)

    return scenarios_with(has_fact)


@transaction.atomic
def price_list_save(*, user: User | None, data: bytes, file_name: str, name: str = "") -> PriceList:
    """Store a file's prices under ``name`` (default: the file's name), replacing that list.

    Existing runs keep the prices that they used. Raises CatalogueError.
    """
    check_may_plan(user)
    if len(data) > MAX_BYTES:
        raise CatalogueError(f"{file_name} is larger than {MAX_BYTES:,} bytes. Split it.")
    name = check_name("price list", name.strip() or Path(file_name).stem, {})
    rows = [asdict(row) for row in read_price_list(data, file_name)]
    changes = {"facts": {"prices": rows}, "source": file_name[:500]}
    row, created = PriceList.objects.update_or_create(
        name=name,
        defaults=changes | {"version": F("version") + 1},
        create_defaults=changes | {"owner": user},
    )
    row.refresh_from_db()
    record(f"price-list.{'created' if created else 'changed'}", row, by=user, version=row.version)
    return row


def price_list_delete(*, row: PriceList, user: User) -> None:
    """Remove a price list; raise NotReady if a scenario names it."""
    check_may_remove(user, row.owner_id, "this price list")
    using = scenarios_with(lambda document: document.get("price_list") == row.name)
    if using:
        raise NotReady(
            f"{row.name} is named by {', '.join(using[:5])}. Take it out of price_list there first."
        )
    record("price-list.removed", row, by=user)
    row.delete()
