"""Parse request bodies: JSON within limits, and scenario files in YAML."""

from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser

from planner.files.documents import fault_of_extent, utf8_text

MAX_VALUES = 1_000_000  # high, because bodies with many rows to estimate are valid


class BoundedJsonParser(JSONParser):
    """A JSON parser with limits on nesting, on the number of values and on digits.

    Without them, a body could exhaust the stack or take very long to print.
    """

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        """Return the JSON; raise ParseError if it is nested too deeply or too large."""
        try:
            data = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("The body is nested too deeply. Check its brackets.") from None
        fault = fault_of_extent(data, max_values=MAX_VALUES)
        if fault:
            raise ParseError(f"The body has a fault: {fault}.")
        return data


class YamlParser(BaseParser):
    """A parser of scenario files, as if JSON ``{"document": text}`` had been sent."""

    media_type = "application/yaml"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None
    ) -> dict[str, str]:
        """Return {"document": text of the body}; raise ParseError if the body is not UTF-8."""
        text = utf8_text(stream.read(), "The body", "Save the file as UTF-8.", ParseError)
        return {"document": text}


class TextYamlParser(YamlParser):
    media_type = "text/yaml"
