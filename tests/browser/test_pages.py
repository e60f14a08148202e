"""What only a browser can tell: scripts, charts, themes, widths."""

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import expect

from bench.access import violations
from bench.pages import plain_pages
from planner.models import Run, Scenario, User
from planner.services.scenarios import scenario_create
from planner.services.worker import run_execute
from tests.browser.conftest import PASSWORD
from tests.planner.web.study import DOCUMENT, completed_run, moments_of

pytestmark = pytest.mark.browser

SCREEN = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
SIDEWAYS = "document.documentElement.scrollWidth - window.innerWidth"


def drawn(site: Any) -> None:
    """Wait for the parts that a page loads, and for every chart that no tab hides; polling a script
    would be refused by the site's own policy."""
    expect(site.locator(".htmx-request")).to_have_count(0)
    waiting = site.locator("[data-figure]:not([data-drawn]):not([hidden] *)")
    expect(waiting).to_have_count(0)


@pytest.fixture
def scenario(planner: User) -> Scenario:
    return scenario_create(owner=planner, document=DOCUMENT)


@pytest.fixture
def study(planner: User, scenario: Scenario) -> Run:
    return completed_run(planner, scenario)


@pytest.fixture
def result(site: Any, live_server: Any, study: Run) -> Any:
    """The page of the comparison, with its charts."""
    site.goto(live_server.url + reverse("web:run", args=[study.pk]))
    drawn(site)
    return site


@pytest.fixture
def addresses(study: Run, scenario: Scenario, planner: User) -> list[str]:
    """Every page that is looked at rather than sent to."""
    planner.is_superuser = True  # People is for admins
    planner.save()
    edit = reverse("web:scenario", args=[scenario.pk])
    run = reverse("web:run", args=[study.pk])
    client = Client()
    client.force_login(planner)
    pages = plain_pages(client)
    assert {reverse(f"web:{name}") for name in ("home", "traces", "people", "size")} <= set(pages)
    return [*pages, run, edit, f"{edit}?view=yaml"]


def looked_over(site: Any, url: str, addresses: list[str], console: list[str]) -> int:
    """Each draws without a complaint, can be read by all in both themes, offers its charts to
    nobody else, and fits a phone; returns how many charts there were."""
    charts = 0
    for address in addresses:
        site.set_viewport_size(PHONE)  # first: a chart is drawn for the width it finds
        site.goto(url + address)
        drawn(site)
        assert site.evaluate(SIDEWAYS) <= 0, address
        charts += kept_at_home(site)
        site.set_viewport_size(SCREEN)
        assert violations(site) == [], address
        assert not console, f"{address}: {console}"
    return charts


def kept_at_home(site: Any) -> int:
    """Plotly's own toolbar, which offers to upload a chart to a cloud, is not shown."""
    frames = site.locator("[data-drawn]").all()
    for frame in frames:
        assert frame.evaluate("frame => frame._context.plotlyServerURL") == ""
        expect(frame.locator(".modebar-btn")).to_have_count(0)
    return len(frames)


def test_every_page_draws_is_read_by_all_stays_at_home_and_fits_a_phone(
    site: Any, live_server: Any, addresses: list[str], console: list[str]
) -> None:
    assert looked_over(site, live_server.url, addresses, console) >= 3


def test_the_menu_opens_on_a_phone(site: Any) -> None:
    site.set_viewport_size(PHONE)
    traces = site.get_by_role("link", name="Traces", exact=True)
    expect(traces).to_be_hidden()
    site.get_by_role("button", name="Open the menu").click()
    site.get_by_role("button", name="Data", exact=True).click()
    traces.click()
    site.get_by_role("heading", name="Traces", level=1).wait_for()


def test_the_palette_finds_a_page_by_keyboard(site: Any, console: list[str]) -> None:
    site.keyboard.press("Control+k")
    palette = site.get_by_role("dialog", name="Search")
    palette.get_by_role("searchbox").fill("disaggregated")
    expect(palette.get_by_role("link").first).to_have_attribute("href", reverse("web:pd-ratio"))
    site.keyboard.press("ArrowDown")
    expect(palette.get_by_role("link").first).to_be_focused()
    site.keyboard.press("ArrowUp")
    site.keyboard.press("Enter")
    site.wait_for_url("**/pd-ratio/")
    site.keyboard.press("Control+k")
    site.keyboard.press("Escape")
    expect(palette).to_be_hidden()
    assert not console


def test_strangers_see_the_login_only_which_leads_back(
    page: Any, live_server: Any, study: Run, planner: User, console: list[str]
) -> None:
    address = live_server.url + reverse("web:run", args=[study.pk])
    page.goto(address)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    plan = page.locator("#result")
    expect(plan).to_have_count(0)
    page.get_by_label("User name").fill(planner.username)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(address)
    expect(plan).to_be_visible()
    assert not console


def test_the_dark_theme_is_chosen_kept_and_drawn(
    site: Any, live_server: Any, study: Run, console: list[str]
) -> None:
    run = live_server.url + reverse("web:run", args=[study.pk])
    site.goto(run)
    drawn(site)
    label = site.locator("#over-time-1 .xtick text").first
    light = label.evaluate("text => getComputedStyle(text).fill")
    site.get_by_role("button", name="Account and theme").click()
    site.get_by_role("button", name="Dark", exact=True).click()
    expect(label).not_to_have_css("fill", light)
    expect(site.locator("html")).to_have_attribute("data-bs-theme", "dark")
    site.goto(f"{live_server.url}/")
    expect(site.locator("html")).to_have_attribute("data-bs-theme", "dark")
    assert not console


def test_a_chart_has_a_table_behind_it(result: Any) -> None:
    behind = result.locator("details.chart-table").first
    behind.locator("summary").focus()
    result.keyboard.press("Enter")
    rows = behind.locator("tbody tr")
    rows.nth(23).wait_for()
    heads = behind.locator("th").all_text_contents()  # as written, not as styled
    assert {"UTC", "Demand"} <= set(heads)


def test_lines_are_chosen_in_the_legend_by_keyboard(result: Any, console: list[str]) -> None:
    """It was the only way to another policy, and a pointer the only way to it."""
    box = result.locator(".chart-box", has=result.locator("#over-time-1"))
    demand = box.get_by_role("checkbox", name="Demand", exact=True)
    before = demand.get_attribute("aria-checked")
    demand.focus()
    result.keyboard.press("Space")
    expect(demand).not_to_have_attribute("aria-checked", before or "")
    expect(demand).to_be_focused()
    result.keyboard.press("Enter")
    expect(demand).to_have_attribute("aria-checked", before or "")
    assert not console


def test_a_folded_section_opens_by_its_address_and_on_paper(
    site: Any, live_server: Any, study: Run, console: list[str]
) -> None:
    address = live_server.url + reverse("web:run", args=[study.pk])
    site.goto(address)
    latency, sources = (site.locator(f"#{name} > *").nth(1) for name in ("simulation", "sources"))
    expect(latency).to_be_hidden()
    site.goto("about:blank")
    site.goto(f"{address}#simulation")
    expect(latency).to_be_visible()
    expect(sources).to_be_hidden()
    site.evaluate("() => { window.dispatchEvent(new Event('beforeprint')) }")
    expect(sources).to_be_visible()
    site.evaluate("() => { window.dispatchEvent(new Event('afterprint')) }")
    expect(sources).to_be_hidden()
    assert not console


def test_an_alternative_redraws_the_first_screen(
    site: Any, live_server: Any, study: Run, console: list[str]
) -> None:
    study.result["alternatives"] = {"economy": "lt-i", "balanced": "flat-peak"}
    study.save()
    site.goto(f"{live_server.url}{reverse('web:run', args=[study.pk])}?alternative=economy")
    drawn(site)
    replicas = "document.querySelector('#over-time-2').data.map((pool) => [...pool.y])"
    economy, tile = site.evaluate(replicas), site.locator(".tile", has_text="Cost per day")
    expect(tile).to_contain_text("$500")
    site.get_by_role("link", name="Balanced").click()
    expect(tile).to_contain_text("$800")
    drawn(site)
    assert site.evaluate(replicas) != economy
    expect(site).to_have_url(re.compile("alternative=balanced"))
    site.go_back()
    expect(tile).to_contain_text("$500")
    assert not console


def test_charts_share_the_range_and_the_address_keeps_it(result: Any, console: list[str]) -> None:
    # The cursor is in both. Charts do not follow it while a change of their range is under way.
    result.locator("#over-time-1 .nsewdrag").first.hover()
    for name in ("over-time-1", "over-time-2"):
        expect(result.locator(f"#{name} .hoverlayer .legend")).to_be_visible()
    ends = ["2024-05-18T06:00", "2024-05-18T12:00"]
    zoomed = (
        "wanted => ['over-time-1', 'over-time-2'].every(id => wanted === "
        "String(document.getElementById(id).layout.xaxis.range[0]).includes('06:00'))"
    )
    result.evaluate(
        "ends => Plotly.relayout('over-time-1', "
        "{'xaxis.range[0]': ends[0], 'xaxis.range[1]': ends[1]})",
        ends,
    )
    result.wait_for_function("location.search.includes('from=2024-05-18T06')")
    result.wait_for_function(zoomed, arg=True)
    result.reload()
    drawn(result)
    result.wait_for_function(zoomed, arg=True)
    result.locator("[data-chart-tool=reset]").first.click()
    result.wait_for_function("!location.search.includes('from=')")
    expect(result.locator("[data-chart-tool=reset]").first).to_be_hidden()
    result.wait_for_function(zoomed, arg=False)
    assert not console


def test_a_chart_is_copied_as_numbers_and_as_a_picture(result: Any, console: list[str]) -> None:
    result.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tools = result.locator(".chart-box:has(#over-time-1) .chart-tools")
    # The mark is there for a second and a half, which a look at the page may miss.
    result.evaluate(
        "() => new MutationObserver((changes) => { for (const { target } of changes)"
        " if (target.matches('.copied')) target.dataset.wasCopied = '' })"
        ".observe(document, { subtree: true, attributeFilter: ['class'] })"
    )
    marked = tools.locator("[data-was-copied]")
    tools.get_by_role("button", name="CSV").click()
    expect(marked).to_have_count(1)
    heads, *rows = result.evaluate("() => navigator.clipboard.readText()").splitlines()
    assert "Demand" in heads.split(",") and len(rows) >= 24
    expect(tools.locator(".copied")).to_have_count(0)
    tools.get_by_role("button", name="PNG").click()
    expect(marked).to_have_count(2)
    kinds = result.evaluate("() => navigator.clipboard.read().then(items => items[0].types)")
    assert "image/png" in kinds
    assert not console


def test_views_of_a_scenario_carry_what_is_not_saved(
    site: Any, live_server: Any, scenario: Scenario, console: list[str]
) -> None:
    site.goto(live_server.url + reverse("web:scenario", args=[scenario.pk]))
    tiers = site.locator("[data-rows=tiers]")
    site.locator("#tiers-title").click()
    tiers.get_by_role("button", name="Add a row").click()
    rows = tiers.locator("[data-row]")
    rows.nth(1).get_by_label("Tier").fill("NIW")
    rows.nth(1).get_by_label("E2E, ms").fill("86400000")
    site.get_by_role("button", name="YAML", exact=True).click()
    text = site.locator("#document")
    expect(text).to_have_value(re.compile("# Kept across edits.*e2e_ms: 86400000", re.DOTALL))
    text.fill(text.input_value().replace("NIW", "BATCH"))
    site.get_by_role("button", name="Form", exact=True).click()
    expect(rows.nth(1).get_by_label("Tier")).to_have_value("BATCH")
    site.locator("#tiers-title").click()
    site.locator("#forecast-title").click()
    days = site.get_by_label("Holidays", exact=True)
    days.fill("2024-12-24")
    site.get_by_label("Holidays of a country").select_option("Germany")
    expect(days).to_have_value("2024-12-24, DE")
    days.fill("")
    rows.nth(1).get_by_role("button", name="Remove this row").click()
    site.get_by_role("button", name="Save", exact=True).click()
    site.get_by_text("is saved").wait_for()
    scenario.refresh_from_db()
    assert scenario.document == DOCUMENT
    assert not console


def test_a_scenario_says_what_is_wrong_while_it_is_typed(
    site: Any, live_server: Any, scenario: Scenario
) -> None:
    site.goto(live_server.url + reverse("web:scenario", args=[scenario.pk]))
    begins = site.get_by_label("Begins (UTC)")
    begins.fill("yesterday")
    expect(site.locator("#id_start + .invalid-feedback")).to_contain_text("2026-05-15T08:00:00Z")
    expect(site.locator("#checked a")).to_have_attribute("href", "#id_start")
    begins.fill("2024-05-18")
    expect(site.locator("#checked")).to_be_empty()
    expect(site.locator(".is-invalid")).to_have_count(0)
    site.get_by_role("button", name="YAML", exact=True).click()
    site.locator("#document").fill(DOCUMENT.replace("seed", "sed") + "sed: 1\n")
    expect(site.locator("#checked")).to_contain_text("sed: this key is not known")
    scenario.refresh_from_db()
    assert scenario.document == DOCUMENT


def test_operations_of_the_api_are_found_by_their_words(
    site: Any, live_server: Any, console: list[str]
) -> None:
    site.set_viewport_size(PHONE)
    site.goto(live_server.url + reverse("api:docs"))
    site.locator("#swagger-ui .opblock").first.wait_for()
    assert site.evaluate(SIDEWAYS) <= 0
    site.set_viewport_size(SCREEN)
    assert violations(site) == [] == console
    site.get_by_label("Find operations").fill("post resume schedules")
    found = ".opblock-summary-path[data-path='/api/v1/schedules/{number}/resume/']"
    expect(site.locator(found).first).to_be_visible()
    others = ".opblock-summary-path:not([data-path^='/api/v1/schedules/'])"
    expect(site.locator(others)).to_have_count(0)


def test_a_refused_file_is_mapped_on_its_page(site: Any, live_server: Any) -> None:
    """Its first rows are shown with a choice above each column, on a phone too."""
    site.set_viewport_size(PHONE)
    site.goto(f"{live_server.url}/traces/upload/")
    rows = "when,prompt_len,answer\n" + "".join(f"{n},{100 + n},{n + 1}\n" for n in range(40))
    odd = {"name": "odd.csv", "mimeType": "text/csv", "buffer": rows.encode()}
    site.get_by_label("Drop a file here").set_input_files(odd)
    site.get_by_role("button", name="Upload", exact=True).click()
    site.wait_for_url("**/traces/odd/")
    run_execute(run_id=Run.objects.get().pk)
    expect(site.get_by_label("What prompt_len is")).to_have_value("input_tokens")
    assert site.evaluate(SIDEWAYS) <= 0
    site.get_by_label("What when is").select_option("Arrival time")
    site.get_by_label("What answer is").select_option("Output tokens")
    with site.expect_navigation():  # to the same address
        site.get_by_role("button", name="Import").click()
    run_execute(run_id=Run.objects.order_by("-pk")[0].pk)
    expect(site.get_by_role("heading", name="Findings")).to_be_visible()
    drawn(site)


def test_an_upload_that_is_refused_says_why_in_place(site: Any, live_server: Any) -> None:
    site.goto(f"{live_server.url}/traces/upload/")
    site.get_by_text("Columns, labels and gaps").click()
    site.get_by_label("Columns", exact=True).fill("flavour=a")
    empty = {"name": "a.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2\n"}
    site.get_by_label("Drop a file here").set_input_files(empty)
    site.get_by_role("button", name="Upload", exact=True).click()
    site.get_by_role("alert").get_by_text("no field 'flavour'").wait_for()
    expect(site).to_have_url(re.compile("/traces/upload/$"))


def test_a_slider_goes_through_past_moments_of_a_forecast(
    site: Any, live_server: Any, study: Run, console: list[str]
) -> None:
    moments_of(study)
    site.goto(f"{live_server.url}{reverse('web:run', args=[study.pk])}#forecast-errors")
    drawn(site)
    expect(site.locator("#moment-origin")).to_contain_text("01:00")
    site.locator("#moment-at").focus()
    site.keyboard.press("ArrowRight")
    expect(site.locator("#moment-origin")).to_contain_text("02:00")
    drawn(site)
    assert not console, console
