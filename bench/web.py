"""How fast pages are with a team's years of work in them, how heavy a first visit is, and who can
read them.

    python -m bench.web [--json] [--rows N] [--scenarios N] [--runs N] [--no-browser]

Filled through the product's own services in a folder of its own: a trace of 10 million requests,
500 scenarios, one run of each of several kinds carried out, and 5,000 runs in all, of which the
rest repeat those; a proposal with comments, a live source, a schedule, a sweep. Measured:

- ``page_p95_ms``: 95th percentile of 20 requests, of the page that has the worst (``worst_page``),
  from the request to the whole answer, compressed, in one process. It needs a quiet machine.
- ``first_visit_kb``: what a browser without a cache fetches for the login, the home page and the
  page of a comparison, as transferred (kB of 1,000 bytes).
- ``whatif_p95_ms``: the same as ``page_p95_ms`` of a what-if's answer; null where there is none.
- ``axe_serious``: serious and critical findings of axe-core over all pages in both themes.
- ``words_above_first_chart``: visible words in the main part of a comparison's page above its first
  chart, at 1280 px, with those of buttons and tiles.
- ``chart_top_px`` and ``chart_top_px_390``: where that chart begins, at 1280 and at 390 px.
- ``new_scenario_fields_in_view``: fields above "More" of a new scenario from a trace; 99 if its
  primary button is out of view at 1280 x 800.
- ``dead_controls``: controls over all pages that do nothing: links to pages that do not answer or
  to parts that are not there, and buttons without a form or a script. Swagger's page, whose
  scripts leave no trace there, is left out. One link of each kind of page is opened.
- ``progress_steps_back``: how often the progress of a run went down while it was carried out.
- ``contradictions``: figures of the comparison that a page, an export or a command shows
  otherwise (bench/contradictions.py).
- ``forms_p95_ms``: the same as ``page_p95_ms`` of the pages with the largest forms.
- ``quick_size_seconds``: seconds of the command ``quick-size`` with three arguments.
- ``clicks_to_any_job_max``: clicks from any page to the page of the job that takes most: one
  for a visible link, two for a link in a menu.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.pages import DemoData

ROOT = Path(__file__).parents[1]
REPEATS = 20
GOALS = {
    "page_p95_ms": 200, "first_visit_kb": 700, "whatif_p95_ms": 1000, "axe_serious": 0,
    "words_above_first_chart": 100, "chart_top_px": 350, "chart_top_px_390": 480,
    "clicks_to_any_job_max": 2, "new_scenario_fields_in_view": 12, "dead_controls": 0,
    "progress_steps_back": 0, "contradictions": 0, "forms_p95_ms": 250, "quick_size_seconds": 5,
}  # fmt: skip
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
UNREACHABLE = 99  # clicks to a job without a link
# Words of the main part that come before the first chart, as far as they are seen.
WORDS = """() => {
  const main = document.querySelector("main");
  const chart = main.querySelector("[data-figure]");
  const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  let words = 0;
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const after = chart.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
    const around = text.parentElement;
    if (after || chart.contains(text) || around.closest("script, .visually-hidden")) continue;
    if (!around.checkVisibility({ visibilityProperty: true })) continue;
    words += text.textContent.split(/\\s+/).filter((word) => /[\\p{L}\\p{N}]/u.test(word)).length;
  }
  return words;
}"""
FIELDS = """() => {
  const main = document.querySelector("main");
  const fields = main.querySelectorAll("input:not([type=hidden]), select, textarea");
  const seen = [...fields].filter((field) => field.checkVisibility({ visibilityProperty: true }));
  const button = main.querySelector(".btn-primary").getBoundingClientRect();
  return button.top >= 0 && button.bottom <= innerHeight ? seen.length : null;
}"""
DEAD = """() => {
  const dead = [];
  for (const link of document.querySelectorAll("a")) {
    const address = link.getAttribute("href");
    if (!address) dead.push(`link without address: ${link.textContent.trim()}`);
    else if (/^#./.test(address) && !document.getElementById(decodeURIComponent(address.slice(1))))
      dead.push(`link to a missing part: ${address}`);
  }
  for (const button of document.querySelectorAll("button")) {
    const htmx = [...button.attributes].some((own) => own.name.startsWith("hx-"));
    const sends = button.type === "submit" && button.form;
    if (!sends && !htmx && !Object.keys(button.dataset).length)
      dead.push(`button: ${button.textContent.trim()}`);
  }
  return dead;
}"""
LINKS = """() => [...document.querySelectorAll("a[href]")]
  .filter((link) => link.origin === location.origin && !link.hasAttribute("download"))
  .map((link) => link.pathname + link.search)"""
TOP = "() => document.querySelector('main [data-figure]').getBoundingClientRect().top + scrollY"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=10_000_000, help="requests of the trace")
    parser.add_argument("--scenarios", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--no-browser", action="store_true", help="server times only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = bench(Path(folder), args)
    if args.json:
        print(json.dumps(figures))
        return
    for page, ms in sorted(figures["pages"].items(), key=lambda item: -item[1]):
        print(f"{ms:8.1f} ms  {page}")
    for name, goal in GOALS.items():
        print(f"{name:16} {figures[name]}  (goal: at most {goal})")
    for name in ("axe", "dead", "contradicting"):
        print(*figures[name], sep="\n")


def bench(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    os.environ["HEADROOM_DATA_DIR"] = str(folder)
    os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / "var" / "numba"))
    os.environ.setdefault("HEADROOM_LOG_LEVEL", "WARNING")
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    for command in (["migrate"], ["collectstatic", "--no-input"]):
        subprocess.run(
            [sys.executable, "manage.py", *command, "--verbosity=0", "--skip-checks"],
            cwd=ROOT,
            check=True,
        )
    import django

    django.setup()
    from bench import pages
    from bench.contradictions import contradictions

    filled = pages.fill(folder, args.rows, args.scenarios, args.runs)
    addresses = filled.addresses()
    times = {address: p95_ms(filled.client, address) for address in addresses}
    worst = max(times, key=lambda address: times[address])
    figures: dict[str, Any] = {
        "requests": args.rows, "scenarios": args.scenarios, "runs": args.runs,
        "page_p95_ms": times[worst], "worst_page": worst, "first_visit_kb": None,
        "whatif_p95_ms": None, "axe_serious": None, "pages": times, "axe": [],
        "words_above_first_chart": None, "chart_top_px": None, "chart_top_px_390": None,
        "clicks_to_any_job_max": None, "new_scenario_fields_in_view": None, "dead_controls": None,
        "dead": [], "progress_steps_back": filled.steps_back,
        "forms_p95_ms": max(times[address] for address in filled.forms),
        "contradicting": contradictions(filled.client, filled.runs[0]),
    }  # fmt: skip
    figures["contradictions"] = len(figures["contradicting"])
    figures["quick_size_seconds"] = quick_size_seconds()
    if filled.whatif:
        figures["whatif_p95_ms"] = p95_ms(filled.client, filled.whatif)
    if not args.no_browser:
        figures |= browse(filled, pages.USER, pages.PASSWORD)
    return figures


def quick_size_seconds() -> float:
    """Return the seconds of the command ``quick-size``, with the start of its process."""
    question = ("--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--users", "100")
    began = time.perf_counter()
    command = [sys.executable, "manage.py", "quick-size", *question]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - began, 1)


def p95_ms(client: Any, address: str) -> float:
    """Return the p95 of ``REPEATS`` requests after a first one; raise if the answer is no page."""
    took = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        answer = client.get(address, headers={"accept-encoding": "gzip"})
        body = answer.getvalue()
        took.append(1e3 * (time.perf_counter() - began))
        if answer.status_code != 200 or not body:
            raise SystemExit(f"{address} answers {answer.status_code}; the bench needs a page.")
    return round(sorted(took[1:])[math.ceil(0.95 * REPEATS) - 1], 1)


@contextmanager
def serve_site() -> Iterator[str]:
    """Serve the site as `bin/run` does, by one process, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "planner.config.wsgi",
             "--config=python:planner.config.web_workers", "--worker-class=gthread",
             f"--bind=fd://{listener.fileno()}", "--threads=4", "--log-level=error",
             "--no-control-socket"],
            cwd=ROOT, pass_fds=[listener.fileno()],
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{url}/healthz", timeout=60).read()
                    break
                except urllib.error.URLError:
                    time.sleep(0.1)
            yield url
        finally:
            server.terminate()
            server.wait()


def browse(filled: DemoData, user: str, password: str) -> dict[str, Any]:
    """Return what a browser fetches on a first visit, and the violations on every page."""
    addresses, run = filled.addresses(), filled.run
    from django.urls import reverse
    from playwright.sync_api import sync_playwright

    from bench.access import violations
    from tests.programs import CHROMIUM, CHROMIUM_ARGUMENTS, find_program

    with serve_site() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=find_program(*CHROMIUM), args=CHROMIUM_ARGUMENTS
        )
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        fetched = 0.0
        wire = page.context.new_cdp_session(page)
        wire.send("Network.enable")

        def count(event: dict[str, Any]) -> None:
            nonlocal fetched
            fetched += event["encodedDataLength"]

        wire.on("Network.loadingFinished", count)
        page.goto(f"{url}/")
        page.get_by_label("User name").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Fleet", level=1).wait_for()
        for address in ("/", run):
            page.goto(url + address, wait_until="networkidle")
        first_visit_kb = round(fetched / 1e3, 1)
        first_screen = first_screen_of(page, url + run) | {"clicks_to_any_job_max": clicks_of(page)}
        first_screen["new_scenario_fields_in_view"] = fields_of(page, url + filled.draft)
        axe, dead, links = [], [], {}
        for address in addresses:
            page.goto(url + address, wait_until="networkidle")
            axe += [f"{address}: {sentence}" for sentence in violations(page)]
            if address != reverse("api:docs"):  # Swagger's own page
                dead += [f"{address}: {sentence}" for sentence in page.evaluate(DEAD)]
            links |= dict.fromkeys(page.evaluate(LINKS), address)
        browser.close()
    dead += broken(filled.client, links)
    found = {"first_visit_kb": first_visit_kb, "axe_serious": len(axe), "axe": axe}
    return found | first_screen | {"dead_controls": len(dead), "dead": dead}


def fields_of(page: Any, address: str) -> int:
    """Return the fields in view of a new scenario, if its primary button is in view too."""
    page.set_viewport_size(WIDE)
    page.goto(address, wait_until="networkidle")
    fields = page.evaluate(FIELDS)
    return UNREACHABLE if fields is None else int(fields)


def broken(client: Any, links: dict[str, str]) -> list[str]:
    """Return a sentence per kind of page to which a link leads and that does not answer.

    ``links`` are addresses with the page that they are on.
    """
    from urllib.parse import parse_qs, urlsplit

    from django.urls import Resolver404, resolve

    kinds: dict[tuple[str, ...], str] = {}
    unknown = []
    for link in links:
        parts = urlsplit(link)
        try:
            name = resolve(parts.path).view_name
        except Resolver404:
            unknown.append(link)
            continue
        kinds.setdefault((name, *sorted(parse_qs(parts.query))), link)
    failing = [link for link in kinds.values() if client.get(link).status_code >= 400]
    return [f"{links[link]}: link to {link} is broken" for link in (*unknown, *failing)]


def first_screen_of(page: Any, address: str) -> dict[str, int]:
    """Return the words above the first chart of a comparison, and where it begins."""
    page.set_viewport_size(WIDE)
    page.goto(address, wait_until="networkidle")
    words, top = page.evaluate(WORDS), page.evaluate(TOP)
    page.set_viewport_size(NARROW)
    page.goto(address, wait_until="networkidle")
    narrow = page.evaluate(TOP)
    page.set_viewport_size(WIDE)
    page.goto(address, wait_until="networkidle")
    return {
        "words_above_first_chart": words,
        "chart_top_px": round(top),
        "chart_top_px_390": round(narrow),
    }


def clicks_of(page: Any) -> int:
    """Return the clicks from the page that is open to the job that takes most."""
    from django.urls import reverse

    from planner.selectors.places import ACCOUNT, FOOTER, PLACES

    most = 0
    for job in (*(job for place in (*PLACES, ACCOUNT) for job in place.jobs), *FOOTER):
        links = page.locator(f'a[href="{reverse(f"web:{job.page}")}"]')
        seen = any(link.is_visible() for link in links.all())
        most = max(most, 1 if seen else 2 if links.count() else UNREACHABLE)
    return most


if __name__ == "__main__":
    main()
