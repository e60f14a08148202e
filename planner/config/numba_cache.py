"""Where numba keeps what it has compiled."""

from hashlib import sha256
from pathlib import Path


def numba_cache_dir(data_dir: Path, repository: Path) -> Path:
    """A folder of ``data_dir`` for the simulator's sources as they are now.

    Numba looks only at the file of each compiled function, not at the files of the functions it
    calls, so code compiled before an edit could outlive it: a change to any source of the
    simulator therefore leads to a new folder.
    """
    sources = sorted((repository / "simulation").rglob("*.py"))
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return data_dir / "numba" / digest[:16]
