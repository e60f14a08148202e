"""Create the OpenAPI document once per version of the code, then serve it from a file."""

import hashlib
import importlib.metadata
import shutil
from functools import cache
from pathlib import Path

from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.settings import spectacular_settings

from planner.files.atomic_write import whole_folder
from planner.installation import ROOT
from planner.storage import row_arrays
from planner.version import VERSION

FOLDER = "openapi"
FORMATS = {"yaml": OpenApiYamlRenderer, "json": OpenApiJsonRenderer}
SOURCES = ("forecasting", "simulation", "planner")  # the document depends on these packages
LIBRARIES = ("django", "djangorestframework", "drf-spectacular")


@cache
def document(format: str) -> bytes:
    """Return the OpenAPI document as "yaml" or "json", with the same bytes for every caller.

    drf-spectacular is not thread-safe while it creates its first document, which takes seconds on a
    busy machine. Therefore one thread of one process creates it. All others wait and read its file.
    """
    kept = row_arrays.data_dir() / FOLDER / code_digest()
    with row_arrays.locked(FOLDER, lambda: None):
        if not kept.exists():
            shutil.rmtree(kept.parent, ignore_errors=True)  # documents of earlier versions
            _write(kept)
        return (kept / f"openapi.{format}").read_bytes()


def _write(folder: Path) -> None:
    """Write the document in both formats; readers see the folder only when it is complete."""
    schema = spectacular_settings.DEFAULT_GENERATOR_CLASS().get_schema(request=None, public=True)
    with whole_folder(folder) as draft:
        for format, renderer in FORMATS.items():
            text: bytes = renderer().render(schema, renderer_context={})  # type: ignore[assignment]
            (draft / f"openapi.{format}").write_bytes(text)


@cache
def code_digest() -> str:
    """Return the release, with a digest of all code that the document depends on."""
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(importlib.metadata.version(library).encode())
    for package in SOURCES:
        root = ROOT / package
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.yaml")]):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return f"{VERSION}-{digest.hexdigest()[:20]}"
