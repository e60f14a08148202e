"""Suggest the right key for an unknown key of the scenario file."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

LISTED = 30  # keys listed if none is similar


def remedy(scenario: type[BaseModel], where: Sequence[str | int]) -> str:
    """Return a sentence on how to correct the unknown key at the end of ``where``.

    It names the most similar key, or else the known keys of the section.
    """
    *section, wrong = where
    known = sorted(set(_keys(scenario, section)))
    near = get_close_matches(str(wrong), known, n=1, cutoff=0.7)
    if near:
        return f"this key is not known. Use {near[0]}, or remove it"
    if not known:
        return "this key is not known. Remove it"
    more = ", ..." if known[LISTED:] else ""
    return f"this key is not known. Remove it, or choose from {', '.join(known[:LISTED])}{more}"


def _keys(root: type[BaseModel], section: Iterable[str | int]) -> Iterator[str]:
    """Yield the keys that may occur in the section at the path ``section``."""
    models = list(_sections(root))
    for step in section:
        fields = [model.model_fields.get(str(step)) for model in models]
        inner = [field.annotation for field in fields if field is not None]
        if inner:
            models = [model for annotation in inner for model in _sections(annotation)]
        else:  # a place in a list, a key of a mapping, or the tag of one of several types
            models = [
                kind for model in models for kind in _kinds(model) if _tagged(kind, step)
            ] or models
    for model in models:
        yield from model.model_fields


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of this type can be, through lists, mappings and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _sections(get_args(annotation)[0])
    elif get_origin(annotation) is not Literal:
        parts = get_args(annotation)
        if get_origin(annotation) in (Union, UnionType) or parts:
            for part in parts:
                yield from _sections(part)


def _kinds(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and all its subclasses."""
    yield model
    for kind in model.__subclasses__():
        yield from _kinds(kind)


def _tagged(model: type[BaseModel], tag: str | int) -> bool:
    """Return whether ``tag`` selects ``model`` in a union.

    A tag is the name of the class, or the only value of one of its fields.
    """
    return model.__name__ == tag or any(
        get_origin(field.annotation) is Literal and tag in get_args(field.annotation)
        for field in model.model_fields.values()
    )
