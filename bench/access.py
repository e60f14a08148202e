"""What stands in the way of those who do not see a page well, or use no mouse: axe-core's findings.

axe-core (Deque, MPL-2.0) as ``axe-playwright-python`` carries it. Counted is what it calls serious
or critical, in both themes: the light one by all rules, the dark one by those that look at colours.
"""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT

THEMES = ("light", "dark")
HARM = ("serious", "critical")
COLOURS = ["color-contrast", "link-in-text-block"]
_RUN = """async ([theme, rules]) => {
  document.documentElement.setAttribute("data-bs-theme", theme);
  const found = await axe.run({
    resultTypes: ["violations"],
    ...(rules.length ? { runOnly: { type: "rule", values: rules } } : {}),
  });
  return found.violations.flatMap((rule) => rule.nodes.map((node) => [
    rule.impact, rule.id, node.target.join(" "),
    [...node.any, ...node.all, ...node.none].map((why) => why.message).join(" "),
  ]));
}"""

# No colours in between; as a sheet of script's own, which the policy of the site lets in.
_AT_ONCE = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { transition: none !important }");
  document.adoptedStyleSheets.push(sheet);
}"""


def violations(page: Any) -> list[str]:
    """Return a sentence for each serious or critical violation on ``page``; its theme stays."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
        page.evaluate(_AT_ONCE)
    page.evaluate("() => { window.dispatchEvent(new Event('beforeprint')) }")  # all of its tabs
    before = page.evaluate("document.documentElement.getAttribute('data-bs-theme')")
    broken_rules = []
    for theme in THEMES:
        rules = COLOURS if theme == "dark" else []
        for impact, rule, target, why in page.evaluate(_RUN, [theme, rules]):
            if impact in HARM:
                broken_rules.append(f"{theme}: {rule} of {target}: {why}")
    page.evaluate("() => { window.dispatchEvent(new Event('afterprint')) }")
    page.evaluate("theme => document.documentElement.setAttribute('data-bs-theme', theme)", before)
    return broken_rules
