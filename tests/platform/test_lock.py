"""The image takes packages whose files are known by their hashes, and they are those that are
tried here."""

import re
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.platform.conftest import ROOT

PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def pins(name: str) -> dict[str, str]:
    """Package to version, of a file of pins."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(pin[1]): pin[2] for line in lines if (pin := PIN.match(line))}


def needed(packages: dict[str, str]) -> set[str]:
    """These with all that they bring along here."""
    names = set(packages)
    waiting = [(name, "") for name in packages] + [("psycopg", "binary")]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # of an extra that this environment leaves out
            continue
        for line in map(Requirement, lines):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                names.add(canonicalize_name(line.name))
                waiting.append((canonicalize_name(line.name), ""))
                waiting += [(canonicalize_name(line.name), its_extra) for its_extra in line.extras]
    return names


def test_all_that_the_image_needs_is_locked_at_the_version_that_is_tried() -> None:
    locked = pins("requirements.lock")
    direct = pins("requirements.txt") | pins("requirements-bucket.txt")
    assert len(direct) > 30 and needed(direct) <= set(locked)
    for name, version in (pins("constraints.txt") | direct).items():
        assert locked.get(name, version) == version, name


def test_each_is_known_by_its_hashes_and_the_image_takes_no_other() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-z0-9])", text)[1:]
    assert len(entries) == len(pins("requirements.lock"))
    assert all(HASH.search(entry) for entry in entries)
    steps = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (install,) = (step for step in steps.splitlines() if "pip install" in step)
    assert "--require-hashes" in install and "--requirement requirements.lock" in install
