"""Find things of a workspace by name, and how-to pages by their text."""

from collections.abc import Iterator, Sequence
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
    return [*_stored(words), *_built_in(text, words)] if words else []


def _stored(words: Sequence[str]) -> Iterator[Found]:
    """Yield the rows of the database whose name has every word; of runs, also their kind."""
    name_matches, title_matches = Q(), Q()  # have every word in their name, or in their title
    runs = Run.objects.filter(sweep=None)
    for word in words:
        name_matches &= Q(name__icontains=word)
        title_matches &= Q(title__icontains=word)
        kinds = [kind for kind, label in Run.Kind.choices if word in label.lower()]
        runs = runs.filter(Q(name__icontains=word) | Q(kind__in=kinds))
    yield from _rows(Scenario.objects.filter(name_matches), "Scenario", "scenario")
    for run in runs.only("pk", "name", "kind")[:MOST]:
        yield Found(f"{run.get_kind_display()}, run {run.pk}", run.name, "run", run.pk)
    for proposal in Proposal.objects.filter(title_matches)[:MOST]:
        yield Found("Proposal", proposal.title, "proposal", proposal.pk)
    yield from _rows(Schedule.objects.filter(name_matches), "Schedule", "schedule")
    yield from _rows(Trace.objects.filter(name_matches), "Trace", "trace", named=True)
    yield from _rows(Source.objects.filter(name_matches), "Live source", "source", named=True)


def _built_in(text: str, words: Sequence[str]) -> Iterator[Found]:
    """Yield GPU types, models, profiles, how-to pages and terms that match ``text``."""
    gpu = " ".join(word for word in words if word not in GPU_FACTS) or text
    lists = (
        ("GPU", gpus_list(gpu)),
        ("Model", models_list(text)),
        ("Profile", profiles_list(text)),
    )
    for kind, rows in lists:
        for row in rows[:MOST]:
            yield Found(kind, row.name, kind.lower(), row.name)
    for name, title in how_tos_with(text)[:MOST]:
        yield Found("Help", title, "help-page", name)
    terms = [term for term in glossary() if matches(text, term.name, term.also)]
    for term in terms[:MOST]:
        yield Found("Glossary", term.name, "glossary", part=term.anchor)


def _rows(
    rows: QuerySet[Any, Any], kind: str, page: str, *, named: bool = False
) -> Iterator[Found]:
    """Yield the first MOST of ``rows`` as results that link to ``page``.

    Links have the ids of rows or, with ``named``, their names.
    """
    for row in rows.only("pk", "name")[:MOST]:
        yield Found(kind, row.name, page, row.name if named else row.pk)
