"""Write the screenshots of README and docs from a running site.

    python -m tools.screenshots http://127.0.0.1:8000 --user demo --run 3

It asks for the password, signs in, and writes docs/images. ``--run`` is the number of a completed
comparison. It needs Playwright and Chromium (``bin/test`` installs them).
"""

from __future__ import annotations

import argparse
import getpass
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1280, 1180  # px


def sign_in(page: Page, site: str, user: str, password: str) -> None:
    """Sign in with a password, or exit with a message."""
    page.goto(f"{site}/login/")
    page.fill("#id_username", user)
    page.fill("#id_password", password)
    page.press("#id_password", "Enter")
    page.wait_for_load_state("networkidle")
    if "/login/" in page.url:
        sys.exit(f"{site} refused the password of {user}.")


def take(page: Page, address: str, file: Path) -> None:
    """Open an address, wait for its charts, and write the first screen to ``file``."""
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)


def main() -> None:
    """Take every screenshot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", help="address of a running site")
    parser.add_argument("--user", default="demo", help="name to sign in with (demo)")
    parser.add_argument("--run", type=int, required=True, help="number of a comparison")
    given = parser.parse_args()
    site = given.site.rstrip("/")
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    password = getpass.getpass(f"Password of {given.user}: ")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser)
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        sign_in(page, site, given.user, password)
        take(page, f"{site}/runs/{given.run}/", FOLDER / "results.png")
        chromium.close()


if __name__ == "__main__":
    main()
