"""Write screenshots of the 25 main pages from a running site with the demo.

    python -m tools.screenshots http://127.0.0.1:8000 --user demo

It asks for the password, signs in, and writes docs/images/NAME-THEME-WIDTH.webp, in light and dark,
at 1280 and 390 px. A page whose list is empty is named and left out. It needs Playwright and
Chromium (``bin/test`` installs them), and Pillow.
"""

import argparse
import getpass
import io
import re
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
THEMES = ("light", "dark")
SIZES = ((1280, 800), (390, 844))  # px
QUALITY = 60  # of WebP; text stays readable
CHARTS_MS = 700  # for charts to follow a change of size or theme
LOGIN = "/login/"
# Addresses by name. Of a pair, the first link of the list that matches the pattern is opened.
PAGES: dict[str, str | tuple[str, str]] = {
    "fleet": "/",
    "scenarios": "/scenarios/",
    "scenario": ("/scenarios/", r"/scenarios/\d+/"),
    "new-scenario": "/scenarios/new/",
    "runs": "/runs/",
    "result": ("/runs/?kind=compare", r"/runs/\d+/"),
    "what-if": ("/runs/?kind=compare", r"/runs/\d+/"),
    "export": ("/runs/?kind=compare", r"/runs/\d+/"),
    "capacity": ("/runs/?kind=size", r"/runs/\d+/"),
    "forecast": ("/runs/?kind=forecast", r"/runs/\d+/"),
    "pd-ratio": ("/runs/?kind=pd-ratio", r"/runs/\d+/"),
    "find-deployment": "/configure/",
    "estimate": "/estimate/?model=llama-3.1-8b&gpu=H100-SXM&tp=1&isl=1024&osl=256&concurrency=32",
    "quick-size": "/quick-size/?model=llama-3.1-70b&gpu=H100-SXM&users=50&isl=4000&osl=1000"
    "&ttft_ms=2000&tbt_ms=50",
    "proposals": "/proposals/",
    "proposal": ("/proposals/", r"/proposals/\d+/"),
    "active-plans": "/plans-in-force/",
    "schedules": "/schedules/",
    "expectations": "/expectations/",
    "traces": "/traces/",
    "trace": "/traces/demo-week/",
    "live-sources": "/sources/",
    "gpus": "/hardware/gpus/",
    "models": "/hardware/models/",
    "help": "/help/",
}
PARTS = {"what-if": "what-if/", "export": "export/"}  # after the address of a run


def sign_in(page: Page, site: str, user: str, password: str) -> None:
    """Sign in with a password, or exit with a message."""
    page.goto(site + LOGIN)
    page.fill("#id_username", user)
    page.fill("#id_password", password)
    page.press("#id_password", "Enter")
    page.wait_for_load_state("networkidle")
    if LOGIN in page.url:
        sys.exit(f"{site} refused the password of {user}.")


def address(page: Page, site: str, name: str) -> str | None:
    """Return the address of a page; None: its list has no such link."""
    entry = PAGES[name]
    if isinstance(entry, str):
        return entry
    list_address, pattern = entry
    page.goto(site + list_address)
    links = page.eval_on_selector_all("main a", "links => links.map(a => a.getAttribute('href'))")
    link = next((link for link in links if link and re.fullmatch(pattern, link)), None)
    return link and link + PARTS.get(name, "")


def take_pictures(page: Page, name: str) -> None:
    """Write the first screen of the open page, in each theme and size."""
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            page.evaluate(f"document.documentElement.setAttribute('data-bs-theme', '{theme}')")
            page.wait_for_timeout(CHARTS_MS)
            page.evaluate("scrollTo(0, 0)")
            with Image.open(io.BytesIO(page.screenshot())) as picture:
                picture.save(FOLDER / f"{name}-{theme}-{width}.webp", quality=QUALITY, method=6)


def main() -> None:
    """Take every screenshot, or those of the pages named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", help="address of a running site")
    parser.add_argument("pages", nargs="*", default=PAGES, help=f"of {', '.join(PAGES)}")
    parser.add_argument("--user", default="demo", help="name to sign in with (demo)")
    given = parser.parse_args()
    site = given.site.rstrip("/")
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    password = getpass.getpass(f"Password of {given.user}: ")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser)
        page = chromium.new_page()
        sign_in(page, site, given.user, password)
        for name in given.pages:
            page_address = address(page, site, name)
            if page_address is None:
                print(f"{name}: nothing to show", file=sys.stderr)
                continue
            page.goto(site + page_address)
            page.wait_for_load_state("networkidle")
            take_pictures(page, name)
        chromium.close()


if __name__ == "__main__":
    main()
