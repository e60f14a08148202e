"""Bodies: JSON within bounds, and scenarios as they lie in their files."""

from __future__ import annotations

from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser

from planner.extent import fault_of_extent

MAX_VALUES = 1_000_000  # rows to estimate are many


class BoundedJsonParser(JSONParser):
    """Refuses what would make Python recurse, or write numbers of thousands of digits."""

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        try:
            data = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("The body is nested too deeply; check its brackets.") from None
        if fault := fault_of_extent(data, values=MAX_VALUES):
            raise ParseError(f"The body has a fault: {fault}.")
        return data


class YamlParser(BaseParser):
    """A scenario as it lies in its file; gives what ``{"document": text}`` would."""

    media_type = "application/yaml"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None
    ) -> dict[str, str]:
        try:
            return {"document": stream.read().decode("utf-8-sig")}
        except UnicodeDecodeError as error:
            raise ParseError(
                f"The body is not UTF-8 text (byte {error.start}); save the file as UTF-8."
            ) from None


class TextYamlParser(YamlParser):
    media_type = "text/yaml"
