"""Measurements uploaded, fitted, judged and used; the new pages on a phone."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from planner.inputs.profiles.spec import ProfileSpec
from planner.models import Profile, User
from planner.services.calibrations import calibration_path
from planner.services.profile_fits import profile_fit
from tests.browser.test_pages import drawn, looked_over

pytestmark = pytest.mark.browser

HEAD = "model,gpu,tp,batch,isl,osl,prefill_ms,tbt_ms"
ROWS = "\n".join(
    f"our-llama,our-h100,1,{b},{isl},128,{(10 + 0.1 * b * isl) * (1 + 0.01 * ((b + isl) % 5))},"
    f"{(20 + 0.5 * b) * (1 + 0.01 * ((b * isl) % 3))}"
    for b in (1, 2, 4, 8, 16)
    for isl in (32, 64, 128)
)
# one row that no profile explains
MEASURED = f"{HEAD}\n{ROWS}\nour-llama,our-h100,1,4,64,128,90,60\n"


def test_from_measurements_to_an_error_and_an_estimate(
    site: Any, live_server: Any, console: list[str]
) -> None:
    site.get_by_role("button", name="Data", exact=True).click()
    site.get_by_role("link", name="Profiles", exact=True).click()
    site.get_by_role("link", name="Calibrate from measurements").click()
    file = {"name": "bench.csv", "mimeType": "text/csv", "buffer": MEASURED.encode()}
    site.get_by_label("Drop a file here").set_input_files(file)
    site.get_by_label("Source of the measurement").fill("the cluster next door")
    site.get_by_role("button", name="Read file").click()
    site.get_by_role("heading", name="What was read").wait_for()
    fit = site.locator("#fit")
    expect(fit).to_contain_text("our-llama on 1 x our-h100 (16 rows)")
    fit.get_by_label("Name of the profile").fill("next door")
    fit.get_by_label("Model", exact=True).fill("llama-3.1-8b")
    fit.get_by_label("GPU", exact=True).fill("H100-SXM")
    fit.get_by_role("button", name="Fit and check").click()
    site.get_by_text("next door, version 1, is created").wait_for()
    drawn(site)
    version = Profile.objects.get().versions.get()
    cells = site.locator("[data-checks] [data-mape]")
    expect(cells).to_have_count(len(version.checks))
    errors = [float(cell.get_attribute("data-mape") or "nan") for cell in cells.all()]
    assert errors == [check["mape"] for check in version.checks]
    expect(site.get_by_role("region", name="Outliers")).to_contain_text("row 16")
    expect(site.locator("#residuals-1 .scatterlayer .points path").first).to_be_attached()

    site.goto(f"{live_server.url}/estimate/")
    drawn(site)  # a request that is still going would complain of being left
    site.get_by_label("Model", exact=True).fill("llama-3.1-8b")
    # by its role: the charts of the first visit have this name too
    site.get_by_role("spinbutton", name="Requests in flight").fill("16")
    site.get_by_role("button", name="Estimate", exact=True).click()
    # the first visit shows a chart too: the address tells when the new one is there
    expect(site).to_have_url(re.compile("concurrency=16"))
    site.locator("#latency-chart[data-drawn]").wait_for()
    expect(site.locator("#ttft")).to_contain_text("ms")
    assert not console


@pytest.fixture
def addresses(planner: User, tmp_path: Path) -> list[str]:
    path = tmp_path / "bench.csv"
    path.write_text(MEASURED)
    calibration = calibration_path(path=path)
    spec = ProfileSpec("next door", "table", "llama-3.1-8b", "H100-SXM", 1, "our-llama", "our-h100")
    profile_fit(user=planner, calibration=calibration, spec=spec)
    asked = "?model=llama-3.1-8b&gpu=H100-SXM&tp=1&isl=1024&osl=256&concurrency=32"
    compared = "?rows=%5B%22our-llama%22%2C+%22our-h100%22%2C+1%5D&profile=next+door%7C1"
    return [
        reverse("web:estimate") + asked,
        reverse("web:profile", args=["next door"]),
        reverse("web:calibration", args=[calibration.pk]) + compared,
        reverse("web:gpu", args=["H100-SXM"]),
        reverse("web:model", args=["llama-3.1-8b"]),
    ]


def test_hardware_pages_draw_are_read_by_all_and_fit_a_phone(
    site: Any, live_server: Any, addresses: list[str], console: list[str]
) -> None:
    looked_over(site, live_server.url, addresses, console)
