"""The style sheet that browsers get has every rule that a page needs, and no others."""

import re
from pathlib import Path

import pytest

from planner.config.static_files import SHEET, UsedClasses, markup_files, trim, trim_variables
from planner.installation import FILES

USED = UsedClasses.from_texts(['<b class="card bg-{{ colour }}-lt">', 'COLOUR = "green"'])


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (".card{a:b}", ".card{a:b}"),
        (".tile{a:b}", ""),
        (".tile,.card b,.card .tile{a:b}", ".card b{a:b}"),
        (".card:not(.tile,.x):hover{a:b}", ".card:not(.tile,.x):hover{a:b}"),
        (".tile:has(b,i:not(.x)),.card:has(b,i:not(.x)){a:b}", ".card:has(b,i:not(.x)){a:b}"),
        (".bg-green-lt{a:b}.bg-red-lt{a:b}.bg-green{a:b}", ".bg-green-lt{a:b}"),
        ("@media (x){.tile{a:b}}@media (y){.card{a:b}}", "@media (y){.card{a:b}}"),
        ("@keyframes tile{to{a:b}}", "@keyframes tile{to{a:b}}"),
        ('.card{a:url("}.tile{")}.tile{a:b}', '.card{a:url("}.tile{")}'),
        ('@charset "x";/*! {v1.x, y} */:root{--a:b}', '@charset "x";/*! {v1.x, y} */:root{--a:b}'),
    ],
)
def test_a_rule_stays_if_its_classes_may_occur(rule: str, kept: str) -> None:
    assert trim(rule, USED) == kept


def test_variables_that_nothing_names_go() -> None:
    sheet = ':root{--a:1;--b:var(--a);--c:"x;}";--d:2}.card{color:var(--b);--e:var(--d)}'
    assert trim_variables(sheet, []) == ":root{--a:1;--b:var(--a);}.card{color:var(--b);}"
    assert trim_variables(sheet, ['colour("--c")']).count("--c") == 1


def test_the_whole_sheet_keeps_whole_rules_and_what_pages_use() -> None:
    sheet = Path(FILES, "static", SHEET).read_text()
    used = UsedClasses.from_texts([file.read_text() for file in markup_files()])
    trimmed = trim(sheet, used)
    assert len(trimmed) < len(sheet) / 2
    for opens, closes in ("{}", "()", "[]"):
        open_in_all = sheet.count(opens) - sheet.count(closes)  # within texts
        assert trimmed.count(opens) - trimmed.count(closes) == open_in_all
    assert trim(trimmed, used) == trimmed
    for name in (":root", "body", "[data-bs-theme=dark]"):  # rules without a class
        rule = re.compile(rf"(?:^|[}}/\s,]){re.escape(name)}(?=[,{{])", re.MULTILINE)
        assert len(rule.findall(trimmed)) == len(rule.findall(sheet)) > 0
    for name in ("navbar-collapse", "dropdown-menu", "bg-red-lt", "text-danger", "form-select"):
        assert f".{name}" in trimmed
