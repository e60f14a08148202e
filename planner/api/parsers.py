"""Bodies other than JSON and forms."""

from __future__ import annotations

from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser


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
