"""Small files that grow: made in a process of its own, whose memory is not counted.

python -m bench.malformed.bombs wide|ids  > FILE.parquet
"""

import io
import subprocess
import sys
from typing import Any

import polars as pl


def parquet(columns: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    pl.DataFrame(columns).write_parquet(out)
    return out.getvalue()


def wide_strings() -> bytes:
    """Return a Parquet file with 2 M strings of 2 kB."""
    rows = 2_000_000
    return parquet(
        {
            "timestamp": pl.int_range(rows, eager=True),
            "input_tokens": pl.repeat(5, rows, eager=True),
            "output_tokens": pl.repeat(5, rows, eager=True),
            "model": pl.repeat("m" * 2000, rows, eager=True),
        }
    )


def lists_of_ids() -> bytes:
    """Return a Parquet file with 200,000 lists of 1,000 ids."""
    rows = 200_000
    return parquet(
        {
            "timestamp": pl.int_range(rows, eager=True),
            "input_tokens": pl.repeat(5, rows, eager=True),
            "output_tokens": pl.repeat(6, rows, eager=True),
            "hash_ids": pl.Series([[7] * 1000]).new_from_index(0, rows),
        }
    )


def run_in_other_process(make: str) -> bytes:
    """Return the file ``make`` (wide or ids), made in another process to keep memory small."""
    command = [sys.executable, "-m", __name__, make]
    return subprocess.run(command, check=True, capture_output=True).stdout


if __name__ == "__main__":
    sys.stdout.buffer.write({"wide": wide_strings, "ids": lists_of_ids}[sys.argv[1]]())
