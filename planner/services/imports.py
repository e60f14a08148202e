"""Import GPUs and models from files: YAML of either, or a model's config.json from Hugging Face."""

import re
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from planner.errors import CatalogueError
from planner.files.documents import fault_of_extent, json_value, utf8_text, yaml_document
from planner.inputs import catalogue
from planner.inputs.catalogue import user_hardware
from planner.inputs.catalogue.config_keys import precision_of
from planner.inputs.catalogue.huggingface import shape_of
from planner.models import OwnGpu, OwnModel, User
from planner.selectors.hardware import gpus_list, models_list
from planner.services.access import check_may_plan
from planner.services.hardware import gpu_save, model_save
from simulation.performance.specs import ModelShape, ModelSpec, Provenance

MAX_BYTES = 1_000_000
MAX_ENTRIES = 200
# Keys by which the config.json of a model is recognised.
CONFIG_KEYS = ("model_type", "architectures", "hidden_size", "n_embd", "d_model", "dim")
MAX_YAML_CHARACTERS = 250_000  # takes a few seconds to read
ANCHOR = re.compile(r"(?:^|[\s\[{,:?-])&\S")
COMMON_KEYS = ("name", "kind", "source")
Document = Mapping[str, Any]  # a mapping in the file
PresentRows = Mapping[str, Mapping[str, Any]]  # OwnGpu or OwnModel by name, for each section


@transaction.atomic
def hardware_import(
    *, user: User | None, data: bytes, file_name: str, name: str = ""
) -> list[OwnGpu | OwnModel]:
    """Store all GPUs and models in a file, or none if one is invalid; return the stored rows.

    They replace GPUs and models of the same name. ``name`` is that of the model in a config.json,
    which may lack it. Raises CatalogueError with the entry and field.
    """
    check_may_plan(user)
    document = read_description(data, file_name)
    if "gpus" not in document and "models" not in document:
        # Multimodal models have the sizes in mappings within the document.
        mappings = [document, *(part for part in document.values() if isinstance(part, Mapping))]
        if not any(key in mapping for mapping in mappings for key in CONFIG_KEYS):
            raise CatalogueError(
                f"{file_name} has no gpus, no models, and no key of a model's config.json "
                f"({', '.join(CONFIG_KEYS)}). Add gpus or models, or choose a config.json."
            )
        return [_import_config(user, document, file_name, name)]
    unknown = sorted(set(document) - {"gpus", "models"})
    if unknown:
        raise CatalogueError(
            f"{file_name}: {', '.join(unknown)} is not known at the top; there are gpus and models."
        )
    present: PresentRows = {
        "gpus": {entry.name: entry.row for entry in gpus_list()},
        "models": {entry.name: entry.row for entry in models_list()},
    }
    return [
        _import_entry(user, file_name, path, fields, present)
        for path, fields in _entries(document, file_name)
    ]


def _import_entry(
    user: User | None,
    file_name: str,
    path: str,
    fields: Document,
    present: PresentRows,
) -> OwnGpu | OwnModel:
    """Store the GPU or model at ``path``, such as ``gpus[0]``, in place of a row in ``present``.

    ``present`` has the stored rows by section ("gpus" or "models") and name.
    """
    location = f"{file_name}: {path}"
    section, _, _ = path.partition("[")
    common_fields: dict[str, Any] = {"user": user, "source": file_name}
    common_fields |= {key: str(fields[key]) for key in COMMON_KEYS if fields.get(key) is not None}
    if "name" not in common_fields:
        raise CatalogueError(f"{location} has no name. Give one.")
    name = common_fields["name"]
    facts = {str(key): value for key, value in fields.items() if key not in COMMON_KEYS}
    row = present[section].get(name)
    if section == "gpus":
        return gpu_save(facts=facts, row=row, **common_fields)
    return model_save(facts=_model_facts(name, facts, location), row=row, **common_fields)


def _model_facts(name: str, facts: Document, location: str) -> Document | ModelSpec:
    """Return the facts of a model entry, or the whole model if the entry states its shape.

    ``location`` is the file and the entry, for messages. Raises CatalogueError if an entry has
    other facts besides its shape, from which they follow.
    """
    if facts.get("shape") is None:
        return {key: value for key, value in facts.items() if key != "shape"}
    shape = facts["shape"]
    others = [key for key in facts if key != "shape"]
    if others or not isinstance(shape, Mapping):
        raise CatalogueError(
            f"{location} has a shape, from which its memory follows. Leave out "
            f"{', '.join(others) or 'values that are not mappings'}."
        )
    return _model_of_shape(user_hardware.model_shape(name, shape))


def _import_config(user: User | None, config: Document, file_name: str, name: str) -> OwnModel:
    """Store the model that a config.json describes, replacing one of the same name."""
    _, _, config_name = str(config.get("_name_or_path") or "").rpartition("/")  # ORGANISATION/NAME
    model_name = name.strip() or config_name
    if not model_name:
        raise CatalogueError(f"{file_name} has no model name. Give one.")
    rows = {entry.name: entry.row for entry in models_list()}
    return model_save(
        user=user,
        name=model_name,
        facts=model_of_config(model_name, config),
        source=f"its {file_name}, which publishes weights in {precision_of(config)}",
        kind="published",
        row=rows.get(model_name),
    )


def model_of_config(name: str, config: Document) -> ModelSpec:
    """Return the model that a config.json describes; raise CatalogueError if a field is missing."""
    return _model_of_shape(shape_of(config, name))


def _model_of_shape(shape: ModelShape) -> ModelSpec:
    """Return the model of a shape, with the memory of its weights in 16 bits."""
    return catalogue.model_of_shape(shape, Provenance("published", "its shape"))


def read_description(data: bytes, file_name: str) -> Document:
    """Return the mapping in a YAML or JSON file; raise CatalogueError for anything else."""
    if len(data) > MAX_BYTES:
        raise CatalogueError(f"{file_name} is larger than 1 MB; it cannot be a description.")
    text = utf8_text(data, file_name, "Choose YAML or JSON.", CatalogueError)
    if text.lstrip().startswith("{"):
        remedy = "Correct it or export it again."
        document = json_value(text, file_name, remedy, CatalogueError)
    else:
        if len(text) > MAX_YAML_CHARACTERS:
            raise CatalogueError(
                f"YAML of more than {MAX_YAML_CHARACTERS:,} characters is too long. Split the file."
            )
        if ANCHOR.search(text):  # a few lines of aliases can expand to billions of values
            raise CatalogueError(
                "YAML with anchors and aliases is not supported. Write the values out."
            )
        document = yaml_document(text, file_name, CatalogueError)
    if fault := fault_of_extent(document):
        raise CatalogueError(f"{file_name}: {fault}.")
    if not isinstance(document, Mapping):
        raise CatalogueError(f"{file_name} holds no mapping; it begins with gpus: or models:.")
    return document


def _entries(document: Document, file_name: str) -> list[tuple[str, Document]]:
    """Return the entries of a document, each with its location such as ``gpus[0]``."""
    entries: list[tuple[str, Document]] = []
    for section in ("gpus", "models"):
        rows = document.get(section) or []
        if not isinstance(rows, list):
            raise CatalogueError(f"{file_name}: {section} must be a list of entries.")
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise CatalogueError(f"{file_name}: {section}[{i}] must be a mapping with a name.")
            entries.append((f"{section}[{i}]", row))
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise CatalogueError(
            f"{file_name} has {len(entries)} entries; 1 to {MAX_ENTRIES} can be taken over at once."
        )
    return entries
