"""Find things of a workspace by name, and how-to pages by their text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from planner.models import Proposal, Run, Scenario, Schedule, Source, Trace
from planner.selectors.glossary import glossary
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.lookup import matches
from planner.selectors.places import how_tos_with
from planner.selectors.profiles import profiles_list

MOST = 5  # most results of one kind
GPU_FACTS = ("gpu", "price", "prices", "cost", "memory")  # words for what a GPU's page has


@dataclass(frozen=True, slots=True)
class Found:
    """An object or page that a search found."""

    kind: str
    label: str
    page: str  # name of the page's route
    key: int | str = ""  # number or name of the object in the URL
    part: str = ""  # id of the element on the page, if there is no key


def things_found(text: str) -> list[Found]:
    """Return objects whose name has every word of ``text``, how-to pages and terms.

    There are MOST of each kind.
    """
    words = text.lower().split()
    if not words:
        return []
    named, titled, runs = Q(), Q(), Run.objects.filter(sweep=None)
    for word in words:
        named, titled = named & Q(name__icontains=word), titled & Q(title__icontains=word)
        kinds = [kind for kind, label in Run.Kind.choices if word in label.lower()]
        runs = runs.filter(Q(name__icontains=word) | Q(kind__in=kinds))
    rows = (
        *_rows(Scenario.objects.filter(named), "Scenario", "scenario"),
        *(
            Found(f"{row.get_kind_display()}, run {row.pk}", row.name, "run", row.pk)
            for row in runs.only("pk", "name", "kind")[:MOST]
        ),
        *(
            Found("Proposal", row.title, "proposal", row.pk)
            for row in Proposal.objects.filter(titled)[:MOST]
        ),
        *_rows(Schedule.objects.filter(named), "Schedule", "schedule"),
        *_rows(Trace.objects.filter(named), "Trace", "trace", named=True),
        *_rows(Source.objects.filter(named), "Live source", "source", named=True),
    )
    gpu = " ".join(word for word in words if word not in GPU_FACTS) or text
    built_in = (
        *(Found("GPU", row.name, "gpu", row.name) for row in gpus_list(gpu)[:MOST]),
        *(Found("Model", row.name, "model", row.name)
          for row in models_list(text)[:MOST]),
        *(Found("Profile", row.name, "profile", row.name) for row in profiles_list(text)[:MOST]),
        *(Found("Help", title, "help-page", name) for name, title in how_tos_with(text)[:MOST]),
        *[Found("Glossary", term.name, "glossary", part=term.anchor)
          for term in glossary() if matches(text, term.name, term.also)][:MOST],
    )  # fmt: skip
    return [*rows, *built_in]


def _rows(
    rows: QuerySet[Any, Any], kind: str, page: str, *, named: bool = False
) -> Iterator[Found]:
    """Yield the first MOST of ``rows`` as results that link to ``page``.

    Links have the ids of rows or, with ``named``, their names.
    """
    for row in rows.only("pk", "name")[:MOST]:
        yield Found(kind, row.name, page, row.name if named else row.pk)
