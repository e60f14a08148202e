"""Read and write scenario files: YAML with line numbers in errors and comments kept on edits.

Sections can be compared and replaced alone, with their comments.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark, MarkedYAMLError, YAMLError
from ruamel.yaml.tokens import CommentToken

from planner.errors import ScenarioError
from planner.files.documents import fault_of_extent
from planner.inputs.scenario.address import place_of, steps_of
from planner.inputs.scenario.references import references, remedy
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.faults import FAULT_KINDS
from planner.inputs.scenario.schema.planning import LEVEL_KINDS
from planner.policies.choice import TAGS

BRACKETS = re.compile(r"[\[\]{}]")
MOST_BRACKETS = 200  # open at once
MAX_CHARACTERS = 250_000  # a few seconds to read
MAX_FAULTS = 20  # reported in one message
# The remedies for values that do not match a pattern of the schema.
FORM_OF_TIMES = 'give a time of day such as "08:00", in quotes'
FORM_OF_MOMENTS = "give a date and time such as 2026-05-15T08:00:00Z"
FORM_OF_TITLE = "give a name that is no number"
FORM_OF_NAMES = "give a name of letters, digits, spaces and ._:/+-, a letter or digit first"
MESSAGES = {  # by type of an error of pydantic
    "missing": "this is missing. Add it",
    "list_type": "this is a list. Begin each of its entries with '- '",
}
# Steps that pydantic adds to a field's path and that the file does not have.
PARTS_OF_TYPES = (
    "[key]",
    "datetime",
    "function-after[check_year(), datetime]",
    "literal['end']",
    *TAGS,
    *FAULT_KINDS,
    *LEVEL_KINDS,
)
POLICIES = "policies"
PARTS = (POLICIES,)  # sections with a separate version history
DOCUMENT_MARKERS = ("---", "...")
CONTINUATIONS = (" ", "\t", "-", "]", "}", "#")  # first characters of lines that begin no section


def _yaml() -> YAML:
    """Return a YAML parser that keeps comments, quotes and layout."""
    yaml = YAML(typ="rt", pure=True)  # the round-trip loader builds plain data only: no objects
    yaml.width = 100
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _parse_yaml(text: str) -> CommentedMap:
    """Return YAML text as a mapping that keeps comments and layout.

    Raise ScenarioError for unsuitable text. Its message must still be preceded by the document's
    name.
    """
    if len(text) > MAX_CHARACTERS:
        raise ScenarioError(f": the scenario is longer than {MAX_CHARACTERS:,} characters.")
    if _open_brackets(text) > MOST_BRACKETS:
        raise ScenarioError(": nested deeper than any scenario. Check the brackets.")
    try:
        data = _yaml().load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ScenarioError(f", line {line}: not valid YAML: {error.problem}.") from None
    except YAMLError as error:
        raise ScenarioError(f": not valid YAML: {error}.") from None
    except RecursionError:
        raise ScenarioError(": nested deeper than any scenario. Check the brackets.") from None
    except ValueError as error:  # a date such as 2024-13-01: ruamel gives no line
        if "integer string conversion" in str(error):
            raise ScenarioError(": a number has thousands of digits. Correct it.") from None
        raise ScenarioError(f": not valid YAML: invalid date or number: {error}.") from None
    except TypeError:  # "? [{a: 1}]": such a key is not hashable
        raise ScenarioError(
            ": not valid YAML: a key is a list or a mapping. Use text as key."
        ) from None
    if not isinstance(data, CommentedMap):
        raise ScenarioError(
            ", line 1: a scenario is a mapping that begins with 'version: 1'. "
            "See docs/examples for one to start from."
        )
    if fault := fault_of_extent(data):
        raise ScenarioError(f": {fault}.")
    return data


# A page or a run reads the same document several times, under several names.
_parse_cached = lru_cache(maxsize=16)(_parse_yaml)


def _parsed(text: str, name: str, *, cached: bool = False) -> CommentedMap:
    """Return the parsed document; raise ScenarioError that begins with ``name``.

    Callers must not change a document that may be ``cached``.
    """
    try:
        return _parse_cached(text) if cached else _parse_yaml(text)
    except ScenarioError as fault:
        raise ScenarioError(f"{name}{fault}") from None


def _open_brackets(text: str) -> int:
    """Return the largest depth of brackets in a text; quotes and comments are not recognised.

    Very deep text is rejected by this, since the YAML parser takes seconds for it.
    """
    deepest = depth = 0
    for bracket in BRACKETS.findall(text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def parse(text: str, name: str = "scenario") -> Scenario:
    """Return the scenario in ``text``; ``name`` is that of the document, for errors.

    Raise ScenarioError with one line per fault: the line number, the field and the remedy.
    """
    data = _parsed(text, name, cached=True)
    try:
        scenario = Scenario.model_validate(_plain_values(data))
    except ValidationError as error:
        sentences = list(dict.fromkeys(_sentence(data, name, fault) for fault in error.errors()))
        listed = sentences[:MAX_FAULTS]
        if len(sentences) > MAX_FAULTS:
            listed.append(f"{name}: and {len(sentences) - MAX_FAULTS:,} more.")
        raise ScenarioError("\n".join(listed)) from None
    problems = [
        f"{name}, line {_line(data, path)}: {_path_words(path)}{words}."
        for path, words in references(scenario)
    ]
    if problems:
        raise ScenarioError("\n".join(problems))
    return scenario


def unknown_keys(text: str) -> list[str]:
    """Return a sentence for each key of a YAML document that is not part of a scenario.

    A form would drop such keys silently. Raise ScenarioError if ``text`` is not YAML.
    """
    data = _parsed(text, "scenario", cached=True)
    try:
        Scenario.model_validate(_plain_values(data))
    except ValidationError as error:
        unknown = (fault for fault in error.errors() if fault["type"] == "extra_forbidden")
        return [_sentence(data, "scenario", fault) for fault in unknown]
    return []


def _sentence(data: CommentedMap, name: str, fault: Any) -> str:
    """Return a sentence on one pydantic error of the document ``data``, with line and field."""
    path = fault["loc"]
    return f"{name}, line {_line(data, path)}: {_path_words(path)}{_message(fault)}."


def dump(scenario: Scenario) -> str:
    """Return YAML that parses to ``scenario``, without values that are defaults."""
    return dump_mapping(scenario.model_dump(mode="json", exclude_defaults=True) | {"version": 1})


def dump_mapping(data: Mapping[str, Any]) -> str:
    """Return YAML of a plain mapping, with ``version`` and ``name`` first."""
    keys = dict.fromkeys(["version", "name", "description", *data])
    ordered = {key: data[key] for key in keys if key in data}
    out = io.StringIO()
    yaml = _yaml()
    yaml.representer.ignore_aliases = lambda _data: True  # write repeated values in full
    yaml.dump(ordered, out)
    return out.getvalue()


def edit(text: str, changes: Mapping[str, Any], name: str = "scenario") -> str:
    """Return ``text`` with the values at dotted paths changed; comments and layout stay.

    ``changes`` maps an address ("horizon.period_s", "policies", "tiers[chat].ttft_ms") to a new
    value. None removes a key; an entry of a list is set to None.
    """
    data = _parsed(text, name)
    for address, value in changes.items():
        *parents, last = steps_of(address)
        node: Any = data
        for step in parents:
            node = _child(node, step, address)
        if isinstance(node, CommentedSeq):
            _set_value(node, place_of(_plain_values(node), last, address), value)
        elif value is None:
            node.pop(last, None)
        elif last in node:
            _set_value(node, last, value)
        else:
            node[last] = value
    return _text_of(data)


def _child(node: Any, step: str, address: str) -> Any:
    """Return the child of a mapping (``step``: key) or list (``step``: name or index of an entry).

    A missing child of a mapping becomes an empty mapping. A list entry that is a bare name becomes
    a mapping with that name. ``address`` is the whole address, for errors.
    """
    if isinstance(node, CommentedSeq):
        key: Any = place_of(_plain_values(node), step, address)
        child, replacement = node[key], {"name": node[key]}
    else:
        key, child, replacement = step, node.get(step), {}
    if isinstance(child, Mapping | CommentedSeq):
        return child
    node[key] = CommentedMap(replacement)
    return node[key]


def values_of(text: str, name: str = "values") -> list[Any]:
    """Return the comma-separated YAML values of ``text``, such as ``0.5, 1, [a, b], null``."""
    try:
        values = _yaml().load(f"[{text}]")
    except (YAMLError, ValueError, RecursionError):
        raise ScenarioError(
            f"{name}: {text[:60]!r} is no list of values. Separate values with commas: 0.5, 1, 2."
        ) from None
    return [_bare_value(value) for value in values]


def _bare_value(value: Any) -> Any:
    """Return ``value`` as plain JSON data, without the types that ruamel adds."""
    if isinstance(value, Mapping):
        return {str(key): _bare_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_bare_value(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _text_of(data: CommentedMap) -> str:
    """Return the document as text, without comments if they would change what the text means.

    ruamel.yaml may write text that does not parse to the same data: it garbles a block mapping
    after a flow mapping with a comment, in a list that begins with a comment.
    """
    out, plain = io.StringIO(), _plain_values(data)
    _yaml().dump(data, out)
    with suppress(ScenarioError):
        if outline(out.getvalue()) == plain:
            return out.getvalue()
    return dump_mapping(plain)


def with_traces(text: str, names: Mapping[int, str]) -> str:
    """Return ``text`` in which sources (by index) name a stored ``trace`` instead of a ``file``."""
    if not names:
        return text
    data = _parsed(text, "scenario")
    for index, trace in names.items():
        source = data["traffic"]["sources"][index]
        source.insert(list(source).index("file"), "trace", trace)
        del source["file"]
        source.pop("timezone", None)
    return _text_of(data)


def _set_value(parent: Any, key: Any, value: Any) -> None:
    """Set ``parent[key]`` to ``value``; unchanged parts keep their comments and layout.

    A node with an anchor is replaced as a whole, because other nodes may refer to it.
    """
    old = parent[key]
    if _plain_values(old) == value:
        return
    has_anchor = isinstance(old, CommentedMap | CommentedSeq) and old.yaml_anchor() is not None
    if isinstance(old, CommentedMap) and isinstance(value, Mapping) and not has_anchor:
        old_keys = {str(old_key): old_key for old_key in old}  # keys may be numbers
        for name in old_keys.keys() - value.keys():
            del old[old_keys[name]]
        for name, item in value.items():
            if name in old_keys:
                _set_value(old, old_keys[name], item)
            else:
                old[name] = item
    elif isinstance(old, CommentedSeq) and isinstance(value, list) and not has_anchor:
        _set_items(old, value)
    else:
        parent[key] = value


def _set_items(old: CommentedSeq, value: list[Any]) -> None:
    """Set the items of a list to ``value``; entries that are equal keep comments and layout."""
    for i, item in enumerate(value):
        # The index of an equal item from here on. If there is one, remove the items before it.
        equal = next((j for j in range(i, len(old)) if _plain_values(old[j]) == item), None)
        if equal is not None:
            for _ in range(equal - i):
                _remove(old, i)
        elif i < len(old) and _plain_values(old[i]) not in value[i:]:
            _set_value(old, i, item)  # the old item is not needed any more
        else:
            # Insert the item. A new mapping is written in flow style ({...}) if the last item is.
            last = old[-1] if old else None
            is_flow = isinstance(last, CommentedMap) and last.fa.flow_style()
            if is_flow and isinstance(item, Mapping):
                item = CommentedMap(item)
                item.fa.set_flow_style()
            old.insert(i, item)
    for i in reversed(range(len(value), len(old))):
        _remove(old, i)


def _remove(items: CommentedSeq, i: int) -> None:
    """Remove item ``i`` of a list with the comments above it; those above the next item stay.

    ruamel.yaml stores the comment behind an item, and the lines above the next item, in one token
    with the last value of the item.
    """
    # A token of comments is ``tokens[index]``, or None there.
    tokens, index = _end_comment(items, i)
    _, _, above_next = (tokens[index].value if tokens[index] else "").partition("\n")
    if i:
        # Move the lines above the next item to the token of the item before.
        tokens, index = _end_comment(items, i - 1)
        previous = tokens[index]
        behind_previous, _, _ = (previous.value if previous else "").partition("\n")
        mark = previous.start_mark if previous else CommentMark(0)
        text = f"{behind_previous}\n{above_next}"
        tokens[index] = CommentToken(text, mark) if behind_previous or above_next else None
    elif above_next:
        # The next item becomes the first, whose comment belongs to the list.
        column = CommentMark(len(above_next) - len(above_next.lstrip(" ")))
        lines = [CommentToken(f"{line.strip()}\n", column) for line in above_next.splitlines()]
        if items.ca.comment and items.ca.comment[1] is not None:
            items.ca.comment[1][:] = lines  # the mapping around the list has the same comment
        else:
            items.ca.comment = [None, lines]
    del items[i]  # a negative index would move the comments of all rows


def _end_comment(node: Any, key: Any) -> tuple[list[Any], int]:
    """Return where ruamel.yaml keeps the comment that follows an entry: a list, and an index in it.

    ``node`` is a mapping or list, and ``key`` the key or index of the entry.
    """
    child = node[key]
    if isinstance(child, CommentedMap | CommentedSeq) and child and not child.fa.flow_style():
        last = len(child) - 1 if isinstance(child, CommentedSeq) else next(reversed(child))
        return _end_comment(child, last)
    tokens = node.ca.items.setdefault(key, [None] * 4)
    return tokens, 0 if isinstance(node, CommentedSeq) else 2


def outline(text: str) -> dict[str, Any]:
    """Return the document as plain data without any check, for a form that shows it."""
    plain: dict[str, Any] = _plain_values(_parsed(text, "scenario", cached=True))
    return plain


def _plain_values(value: Any) -> Any:
    """Return parsed YAML as plain dicts, lists and values."""
    if isinstance(value, Mapping):
        return {str(key): _plain_values(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain_values(item) for item in value]
    return value


def _line(data: Any, path: Sequence[str | int]) -> int:
    """Return the line (from 1) of the deepest part of ``path`` that the document has."""
    line = 0
    node = data
    for step in path:
        try:
            if isinstance(node, CommentedMap) and step in node:
                line = node.lc.key(step)[0]
            elif isinstance(node, CommentedSeq) and isinstance(step, int):
                line = node.lc.item(step)[0]
            elif step in PARTS_OF_TYPES:  # pydantic's name of a type, no key of the document
                continue
            else:
                break
            node = node[step]
        except (KeyError, IndexError, AttributeError, TypeError):
            break  # an edit created this node, so it has no line
    return int(line) + 1


def _path_words(path: Sequence[str | int]) -> str:
    """Return a field's path as users write it, with a colon at the end; "" for the whole file."""
    text = ""
    for step in path:
        if step in PARTS_OF_TYPES:
            continue
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return f"{text}: " if text else ""


def _message(fault: Any) -> str:
    """Return the message of one pydantic error: the fault and the remedy, in plain words."""
    kind, value, path = fault["type"], fault.get("input"), fault["loc"]
    if kind in MESSAGES:
        return MESSAGES[kind]
    if kind == "extra_forbidden":
        return remedy(Scenario, path)
    if kind == "union_tag_not_found":
        return f"{_without_quotes(fault['ctx']['discriminator'])} is missing. Add it"
    if kind == "union_tag_invalid":
        context = fault["ctx"]
        field = _without_quotes(context["discriminator"])
        tags = _without_quotes(context["expected_tags"])
        return f"there is no such {field}. Choose from {tags}, not {context['tag']!r}"
    if kind.startswith("datetime_") or "literal['end']" in path:
        may_be_end = path[-2:-1] == ("start",)
        end = ", or end for the time after the trace" if may_be_end else ""
        return f"{FORM_OF_MOMENTS}{end}, not {value!r}"
    if kind == "string_pattern_mismatch":
        form = FORM_OF_TITLE if path == ("name",) else FORM_OF_NAMES
        if path[-1] == "at":
            form = FORM_OF_TIMES
        return f"{form}, not {value!r}"
    words = str(fault["msg"]).removeprefix("Value error, ").rstrip(".")
    words = words[:1].lower() + words[1:]
    is_shown = isinstance(value, str | int | float) and not isinstance(value, bool)
    return f"{words}, not {value!r}" if is_shown else words


def _without_quotes(names: Any) -> str:
    return str(names).replace("'", "")


def section_of(document: str, name: str) -> str:
    """Return the lines of the section ``name`` of a document; "" if it is missing.

    A document in JSON has no lines of a section, so its value is returned as JSON.
    """
    lines = document.splitlines(keepends=True)
    line_range = _line_range(lines, name)
    if line_range is not None:
        return "".join(lines[slice(*line_range)])
    if name not in document:
        return ""
    value = outline(document).get(name)
    return "" if value is None else json.dumps(value)


def with_section(document: str, name: str, other: str) -> str:
    """Return ``document`` with its section ``name`` replaced by that of ``other``, with comments.

    ``other`` is a whole document. The section is removed if ``other`` has none.
    """
    lines, other_lines = document.splitlines(keepends=True), other.splitlines(keepends=True)
    own_range, other_range = _line_range(lines, name), _line_range(other_lines, name)
    if own_range is None and _line_range(lines, "version") is not None:
        own_range = len(lines), len(lines)  # a document in block style: append the section
    if own_range is None or other_range is None:
        return edit(document, {name: outline(other).get(name)})
    first, end = own_range
    text = ""
    for part in (lines[:first], other_lines[slice(*other_range)]):
        if part:  # each part ends with a line break
            text += "".join(part).removesuffix("\n") + "\n"
    return text + "".join(lines[end:])


def _line_range(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return (index of its first line, index after its last line) of a section; None if missing.

    Comments and blank lines before the next section belong to the next section.
    """
    key_of_section = re.compile(rf"""["']?{re.escape(name)}["']?\s*:(\s|$)""")
    first = next((n for n, line in enumerate(lines) if key_of_section.match(line)), None)
    if first is None:
        return None
    end = first + 1
    for n in range(first + 1, len(lines)):
        line = lines[n]
        ends_section = line.startswith(DOCUMENT_MARKERS) or not line.startswith(CONTINUATIONS)
        if line.strip() and ends_section:
            break
        if line.strip() and not line.startswith("#"):
            end = n + 1
    return first, end
