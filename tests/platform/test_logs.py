"""Lines of the log that machines read."""

import json
import logging

from planner.services.log_format import JsonLines, logging_run


def line(message: str, *values: object, error: BaseException | None = None) -> dict[str, object]:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("planner.x", logging.WARNING, "x.py", 1, message, values, info)
    text = JsonLines().format(record)
    assert "\n" not in text
    document: dict[str, object] = json.loads(text)
    return document


def test_a_line_is_an_object_with_the_run_it_is_about() -> None:
    plain = line("%s of %d", "one", 2)
    assert {name: plain[name] for name in ("level", "logger", "message")} == {
        "level": "WARNING",
        "logger": "planner.x",
        "message": "one of 2",
    }
    assert str(plain["time"]).endswith("+00:00")
    assert "run" not in plain
    with logging_run(7):
        assert line("far below")["run"] == 7
    assert "run" not in line("after it")


def test_an_error_keeps_its_traceback_in_its_line() -> None:
    assert "ValueError: two\nlines" in str(line("failed", error=ValueError("two\nlines"))["error"])
