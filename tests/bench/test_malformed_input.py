"""Malformed input that once came to a traceback, by its cause: each answered by a sentence now.

`bin/bench malformed` sends these and a thousand others, bombs among them.
"""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.malformed import files
from bench.malformed import inputs as sent
from bench.malformed.doors import Doors
from bench.malformed.input import Input
from planner.errors import NoRoom, input_error_of

ONCE: dict[str, tuple[Callable[[], Iterator[Input]], tuple[str, ...]]] = {
    "types of Parquet columns": (
        files.parquet_types,
        (
            "nested lists as timestamp", "structs as timestamp", "durations as timestamp",
            "times of day as timestamp", "binary as timestamp", "moments in us far off",
            "moments in ms far off as timestamp", "lists of words as input_tokens",
            "durations as requests", "binary as model", "arrays as hash_ids",
        ),
    ),
    "numbers of thousands of digits in YAML": (
        sent.scenarios,
        (
            "hexadecimal, as seed", "octal, as version", "binary, as name",
            "hexadecimal, as a model", "hexadecimal, as a key", "decimal, as seed",
        ),
    ),
    "numbers of thousands of digits in forms": (sent.forms, ("5,000 digits in regions-TOTAL", )),
    "GPUs of thousands of digits": (files.descriptions, ("hexadecimal", "octal", "binary")),
    "JSON nested deep": (sent.json_bodies, ("nested deep to", "deep in its fields to scen")),
    "file names": (files.file_names, ("two bytes to /", "three bytes to /")),
    "numbers beyond 64 bits": (sent.filters, ("64 bits in", )),
    "kernels that are no numbers": (files.kernel_files, ("words in all but", "empty in every")),
    "ends of the calendar": (sent.moments, ("0001-01-01", "9999-12-31")),
    "no files": (files.no_files, ("pipe for", "/dev/zero for")),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("cause", ONCE)
def test_nothing_escapes(cause: str) -> None:
    make, words = ONCE[cause]
    doors = Doors()
    tried = 0
    for each in make():
        if any(word in each.name for word in words):
            answer = each.send(doors)
            assert not answer.escaped, f"{each.name}: {answer}"
            assert "sys.set_int" not in answer.sentence
            tried += 1
    assert tried >= len(words)


@pytest.mark.django_db
def test_a_file_without_the_right_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root one may read anything, so the refusal is put on."""
    path = tmp_path / "a.csv"
    path.write_bytes(files.AZURE)
    path.chmod(stat.S_IWUSR)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    answer = Doors().command("estimate", "--rows", str(path))
    assert (answer.status, answer.escaped) == (2, False)
    assert "cannot be opened: Permission denied" in answer.sentence


def test_a_full_disk_is_a_sentence() -> None:
    for error in (
        OSError(28, "No space left on device"),
        OSError(30, "Read-only file system"),
        Exception("database or disk is full"),
        Exception("attempt to write a readonly database"),
    ):
        assert isinstance(input_error_of(error), NoRoom)
    assert input_error_of(OSError(5, "Input/output error")) is None
    assert input_error_of(ValueError("a bug")) is None
