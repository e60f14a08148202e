"""Write the how-to pages as HTML: headings, paragraphs, lists, tables, code and links.

The pages are our own files, and everything in them is escaped.
"""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from textwrap import dedent

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import slugify

CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
STRONG, EMPHASIS = re.compile(r"\*\*([^*]+)\*\*"), re.compile(r"\*([^*]+)\*")
CODE_MARK = "\0"  # stands for inline code while the text around it is converted
ITEM = re.compile(r"^(?:[-*]|(\d+)\.) ")
Address = Callable[[str], str]  # of a link's target; "": it has no page here


def html_of(text: str, address: Address) -> SafeString:
    """Return a Markdown page as HTML; ``address`` maps each link target to a URL."""
    return mark_safe("\n".join(_blocks(text, address)))  # noqa: S308 - every part is escaped


def _blocks(text: str, address: Address) -> Iterator[str]:
    """Yield the HTML of a page: code blocks as they are, all other blocks converted."""
    # The pattern has a group, so the parts are in turn text between code blocks, and code.
    parts = re.split(r"^ *```\w*\n(.*?)^ *```$", text, flags=re.M | re.S)
    for i, part in enumerate(parts):
        is_code = i % 2 == 1
        if is_code:
            yield f'<pre tabindex="0"><code>{escape(dedent(part).rstrip())}</code></pre>'
            continue
        for block in re.split(r"\n\s*\n", part):
            yield from _block(block.strip().splitlines(), address)


def _block(lines: list[str], address: Address) -> Iterator[str]:
    """Yield the HTML of one block: headings, a table, lists or paragraphs."""
    for kind, group in groupby(lines, _kind):
        rows = list(group)
        match kind:
            case "heading":
                for row in rows:
                    level, _, title = row.partition(" ")
                    yield f'<h{len(level)} id="{slugify(title)}">{_words(title, address)}' \
                          f"</h{len(level)}>"  # fmt: skip
            case "table":
                yield _table(rows, address)
            case "ul" | "ol":
                items = (f"<li>{_words(ITEM.sub('', row), address)}</li>" for row in rows)
                first = ITEM.match(rows[0])
                start = f' start="{first[1]}"' if first and first[1] else ""
                yield f"<{kind}{start}>{''.join(items)}</{kind}>"
            case _:
                yield f"<p>{_words(' '.join(rows), address)}</p>"


def _kind(line: str) -> str:
    """Return the kind of a line of Markdown: "heading", "table", "ul", "ol" or "" (paragraph)."""
    if line.startswith("#"):
        return "heading"
    if line.startswith("|"):
        return "table"
    item = ITEM.match(line)
    if item is None:
        return ""
    return "ol" if item[1] else "ul"  # item[1] is the number of the item


def _table(rows: list[str], address: Address) -> str:
    """Return the HTML of a table; the second row only separates the head."""
    head, _, *body = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    heads = "".join(f'<th scope="col">{_words(cell, address)}</th>' for cell in head)
    body_html = ""
    for cells in body:
        row_html = "".join(f"<td>{_words(cell, address)}</td>" for cell in cells)
        body_html += f"<tr>{row_html}</tr>"
    return (
        '<div class="table-responsive" tabindex="0" role="region" aria-label="Table">'
        f'<table class="table"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body_html}</tbody></table></div>"
    )


def _words(text: str, address: Address) -> str:
    """Return a line of Markdown as HTML, with links, bold, emphasis and inline code."""

    def link(match: re.Match[str]) -> str:
        words, target = match[1], address(match[2])
        return f'<a href="{escape(target)}">{words}</a>' if target else words

    # Inline code is put aside first, so that no Markdown in it is converted.
    codes = iter(CODE.findall(text))
    html = LINK.sub(link, escape(CODE.sub(CODE_MARK, text)))
    html = STRONG.sub(r"<strong>\1</strong>", html)
    html = EMPHASIS.sub(r"<em>\1</em>", html)
    return re.sub(CODE_MARK, lambda _: f"<code>{escape(next(codes))}</code>", html)
