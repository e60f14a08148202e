"""Show the how-to pages and the glossary inside the product."""

from functools import cache

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from planner.errors import NotFound
from planner.selectors.glossary import glossary
from planner.selectors.places import PLACES, how_to_text, how_tos
from planner.web.markdown import html_of
from planner.web.pages.browser_steps import PREFIX, browser_steps
from planner.web.request import Request

FIRST = ("read-your-traffic", "plan-tomorrow", "review-a-plan", "ship-to-keda")
GROUPS = {
    "Plan": (
        "plan-tomorrow", "plan-a-launch", "plan-months-ahead", "plan-on-a-schedule",
        "ask-what-if", "check-n-plus-1", "plan-within-power",
    ),
    "Size and compare": (
        "choose-a-gpu", "count-gpus", "split-prefill-and-decode", "compare-autoscalers",
        "share-gpus", "change-roles", "follow-prices",
    ),
    "Connect data": (
        "read-your-traffic", "connect-live-traffic", "import-your-fleet", "measure-your-gpu",
        "use-your-measurements",
    ),
}  # fmt: skip
OTHERS = "Review, ship and extend"


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the how-to pages by group; pages that no group names come last."""
    titles = how_tos()
    groups = {
        group: [(name, title, _purpose(name)) for name, title in pages]
        for group, pages in _pages_by_group().items()
    }
    first = [(name, titles[name]) for name in FIRST]
    return render(request, "web/help.html", {"groups": groups, "first": first})


@require_safe
def page(request: Request, slug: str) -> HttpResponse:
    """Show a page of docs/how-to."""
    if slug not in how_tos():
        raise NotFound(f"There is no how-to {slug[:60]!r}. The list has all of them.")
    _, _, text = how_to_text(slug).partition("\n")
    purpose, _, body = text.strip().partition("\n\n")
    groups = _pages_by_group().values()
    context = {
        "nearby": next(pages for pages in groups if slug in dict(pages)),
        "slug": slug, "title": how_tos()[slug],
        "purpose": purpose.replace("`", ""),
        "steps": html_of(browser_steps(slug), _address), "body": html_of(body, _address),
    }  # fmt: skip
    return render(request, "web/help.html", context)


def _pages_by_group() -> dict[str, list[tuple[str, str]]]:
    """Return (name, title) of each how-to page by group."""
    titles = how_tos()
    grouped = {name for names in GROUPS.values() for name in names}
    names_by_group = GROUPS | {OTHERS: tuple(name for name in titles if name not in grouped)}
    return {
        group: [(name, titles[name]) for name in names if name in titles]
        for group, names in names_by_group.items()
    }


@cache
def _purpose(slug: str) -> str:
    """Return the first sentence of a how-to page, below its title."""
    _, first_paragraph, *_ = how_to_text(slug).split("\n\n")
    sentence, _, _ = first_paragraph.partition(". ")
    return sentence.rstrip(".").replace("`", "")


def _address(target: str) -> str:
    """Return the URL in the product for a link in a how-to; "" if it leads elsewhere."""
    if target.startswith(PREFIX):
        return reverse(target)
    name, _, part = target.partition("#")
    name = name.removesuffix(".md")
    if name in how_tos():
        return reverse("web:help-page", args=[name])
    return f"{reverse('web:glossary')}#{part}" if name == "../glossary" else ""


@require_safe
def terms(request: Request) -> HttpResponse:
    """Show every term of docs/glossary.md, with a link to the page that lists such objects."""
    page_of_label = {job.label.lower(): job.page for place in PLACES for job in place.jobs}
    page_of_term = {}
    for term in glossary():
        plural = f"{term.name.lower()}s"  # lists are called by the plural, such as "Scenarios"
        if plural in page_of_label:
            page_of_term[term.name] = reverse(f"web:{page_of_label[plural]}")
    return render(request, "web/glossary.html", {"terms": glossary(), "pages": page_of_term})
