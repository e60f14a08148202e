"""A password can be looked at while it is typed, and what is chosen is judged as it is typed."""

from typing import Any

import pytest
from playwright.sync_api import expect

from bench.access import violations
from tests.browser.test_pages import PHONE, SIDEWAYS

pytestmark = pytest.mark.browser


def test_a_password_is_judged_and_shown(site: Any, live_server: Any, console: list[str]) -> None:
    site.set_viewport_size(PHONE)
    site.goto(f"{live_server.url}/account/password/")
    field, words = site.locator("#id_new_password1"), site.locator("[data-strength] [role=status]")
    expect(words).to_be_hidden()
    field.fill("password1234")
    expect(words).to_contain_text("weak: who stole the database finds it in")
    weak = site.locator("meter").evaluate("meter => meter.value")
    field.fill("ninety quiet otters rent a barn")
    expect(words).to_contain_text("strong: who stole the database finds it in centuries")
    assert weak < site.locator("meter").evaluate("meter => meter.value") == 5
    assert violations(site) == [] and site.evaluate(SIDEWAYS) <= 0

    button = site.locator("[data-reveal=id_new_password1]")
    button.click()
    expect(field).to_have_attribute("type", "text")
    expect(button).to_have_attribute("aria-pressed", "true")
    site.locator("#id_old_password").fill("wrong")
    site.locator("#id_new_password2").fill("another")
    site.get_by_role("button", name="Change password").last.click()
    expect(site.get_by_text("was entered incorrectly")).to_be_visible()
    expect(field).to_have_attribute("type", "password")
    assert not console
