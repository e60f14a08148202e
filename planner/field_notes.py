"""Read the comments of fields in the source code of classes, as their documentation.

A comment is above its field or at the end of its line. Documentation pages and the JSON Schema of
scenarios show it.
"""

import inspect
import io
import re
import tokenize
from dataclasses import is_dataclass
from functools import cache

from pydantic import BaseModel

FIELD = re.compile(r"    (?P<field>[a-z_][a-z0-9_]*): ")


def field_notes(section: type) -> dict[str, str]:
    """Return the comment of each field of a pydantic model or dataclass; "" if it has none.

    Inherited fields are included.
    """
    notes: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if is_dataclass(kind) or (issubclass(kind, BaseModel) and kind is not BaseModel):
            notes |= _own_notes(kind)
    if issubclass(section, BaseModel):
        return {name: _sentence(notes.get(name, "")) for name in section.model_fields}
    return {name: _sentence(note) for name, note in notes.items()}


@cache
def _own_notes(kind: type) -> dict[str, str]:
    """Return the comments of the fields that the class itself declares, by field.

    A field's comment is in the lines above it, and at the end of its own lines.
    """
    source = inspect.getsource(kind)
    comment_of_line = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            line_number, _column = token.start
            comment_of_line[line_number] = token.string.lstrip("# ")
    notes: dict[str, str] = {}
    above: list[str] = []  # comment lines above the next field
    field = ""  # the field that a comment at the end of this line belongs to
    for number, line in enumerate(source.splitlines(), start=1):
        comment = comment_of_line.get(number, "")
        if line.strip().startswith("#"):
            above.append(comment)
            field = ""
            continue
        declared = FIELD.match(line)
        if declared:
            field = declared["field"]
            notes[field] = " ".join(above)
        elif line.startswith(("    def ", "    @")):
            field = ""  # comments in methods are of no field
        above = []
        if field and comment and "fmt:" not in comment:
            notes[field] = f"{notes[field]} {comment}".strip()
    return notes


def _sentence(note: str) -> str:
    """Return the note with a capital letter and a full stop."""
    note = note.strip().removesuffix(".")
    if not note:
        return ""
    first_word, *_ = note.split()
    is_name_of_value = first_word.endswith(":") and first_word != "default:"
    if not is_name_of_value:
        note = f"{note[:1].upper()}{note[1:]}"
    return f"{note}."
