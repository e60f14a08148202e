"""Give the wheel the dependencies of requirements.txt, and its extras; hatchling calls it."""

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

EXTRAS = ("bucket", "warehouse")


class Requirements(MetadataHookInterface):
    """Read requirements from the files that list them with their reasons."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add dependencies and optional dependencies."""
        root = Path(self.root)
        metadata["dependencies"] = requirements(root / "requirements.txt")
        metadata["optional-dependencies"] = {
            extra: requirements(root / f"requirements-{extra}.txt") for extra in EXTRAS
        }


def requirements(file: Path) -> list[str]:
    """Return the requirements of a file, without comments and options."""
    lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("-")]
