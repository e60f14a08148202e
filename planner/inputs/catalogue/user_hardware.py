"""Convert a user's GPUs and models between their units and the SI units of the core.

Forms, YAML and the API share these units. One table of quantities defines names, units and limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import CatalogueError
from planner.inputs.catalogue.hardware import SHAPE_FIELDS, vendor_and_year
from planner.inputs.numbers import finite_number
from simulation.errors import SimulationError
from simulation.performance.specs import BYTES, GpuSpec, ModelShape, ModelSpec, Provenance

GIGA, TERA = 1e9, 1e12
LARGEST = 1_000_000_000  # limit on any count in a shape
SWITCHES = ("gated", "tied_embeddings", "attention_gate", "causal")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that a user gives about a GPU type or model: a field of forms, YAML and API."""

    name: str
    label: str
    unit: str
    attribute: str  # of GpuSpec or ModelSpec; its value is the number times ``per_unit``
    per_unit: float = 1.0
    low: float = 0.0
    high: float = 1e6
    required: bool = False
    whole: bool = False
    hint: str = ""


GPU: tuple[Quantity, ...] = (
    Quantity("memory_gb", "Memory", "GB", "memory_bytes", GIGA, 0.1, 1e5, required=True,
             hint="Per GPU; 1 GB is 10^9 bytes"),
    Quantity("idle_w", "Power, idle", "W", "idle_w", high=1e5, required=True),
    Quantity("prefill_w", "Power, prefill", "W", "prefill_w", high=1e5, required=True,
             hint="Board power during prefill"),
    Quantity("decode_w", "Power, decode", "W", "decode_w", high=1e5, required=True),
    Quantity("tdp_w", "Power limit (TDP)", "W", "tdp_w", high=1e5),
    Quantity("bandwidth_gb_s", "Memory bandwidth", "GB/s", "bandwidth_bytes_s", GIGA, 1, 1e6,
             hint="Vendor's peak; required for roofline estimates"),
    Quantity("bf16_tflops", "Peak, bf16", "TFLOP/s", "bf16", TERA, 0.1, 1e6, hint="Dense"),
    Quantity("fp8_tflops", "Peak, fp8", "TFLOP/s", "fp8", TERA, 0.1, 1e6, hint="Dense"),
    Quantity("fp4_tflops", "Peak, fp4", "TFLOP/s", "fp4", TERA, 0.1, 1e6, hint="Dense"),
    Quantity("int8_tops", "Peak, int8", "TOP/s", "int8", TERA, 0.1, 1e6, hint="Dense"),
    Quantity("int4_tops", "Peak, int4", "TOP/s", "int4", TERA, 0.1, 1e6, hint="Dense"),
    Quantity("link_gb_s", "Link between GPUs", "GB/s", "link_bytes_s", GIGA, 0.01, 1e6,
             hint="Per GPU, one direction, within a node"),
    Quantity("network_gb_s", "Network to other nodes", "GB/s", "network_bytes_s", GIGA, 0.01, 1e6,
             hint="Per GPU, one direction"),
    Quantity("gpus_per_node", "GPUs in a node", "", "gpus_per_node", low=1, high=1024, whole=True),
)  # fmt: skip
MODEL: tuple[Quantity, ...] = (
    Quantity("weight_gb", "Weights", "GB", "weight_bytes", GIGA, 0.001, 1e5, required=True,
             hint="In the served precision"),
    Quantity("kv_bytes_per_token", "KV cache per token", "bytes", "kv_bytes_per_token",
             low=1, high=1e9, required=True),
    Quantity("max_context", "Largest context", "tokens", "max_context", low=2, high=1e9,
             required=True, whole=True, hint="Input plus output"),
)  # fmt: skip


def gpu_spec(name: str, facts: Mapping[str, Any], provenance: Provenance) -> GpuSpec:
    """Return the GPU type ``name`` with ``facts``; raise CatalogueError naming the wrong field.

    The power of prefill and decode must lie between the idle power and the TDP.
    """
    values = _values(f"GPU {name}", GPU, facts, ("family",))
    peaks = {precision: values.pop(precision) for precision in BYTES if precision in values}
    idle_w, tdp_w = values["idle_w"], values.get("tdp_w")
    for field in ("prefill_w", "decode_w"):
        watts = values[field]
        if watts < idle_w:
            raise CatalogueError(
                f"GPU {name}: {field} is {watts:g}, below idle_w ({idle_w:g}); a GPU draws least "
                "when it idles."
            )
        if tdp_w is not None and watts > tdp_w:
            raise CatalogueError(
                f"GPU {name}: {field} is {watts:g}, above tdp_w ({tdp_w:g}). Correct one."
            )
    family = str(facts.get("family") or "")
    vendor, year = vendor_and_year(family)
    return GpuSpec(
        name=name, provenance=provenance, peak_flops=peaks, family=family, vendor=vendor, year=year,
        **values,
    )  # fmt: skip


def gpu_form_values(spec: GpuSpec) -> dict[str, Any]:
    """Return the known values that a user would enter for a GPU type, by name."""
    # A peak has the name of its precision, which is no attribute of the type.
    facts = {field: getattr(spec, field) for field in spec.__slots__} | dict(spec.peak_flops)
    return _in_units(GPU, facts) | ({"family": spec.family} if spec.family else {})


def model_spec(name: str, facts: Mapping[str, Any], provenance: Provenance) -> ModelSpec:
    """Return the model ``name`` with memory in ``facts``; raise CatalogueError with the field."""
    values = _values(f"model {name}", MODEL, facts)
    return ModelSpec(name=name, provenance=provenance, **values)


def model_form_values(spec: ModelSpec) -> dict[str, Any]:
    """Return the values that a user would enter for the memory of a model, by name."""
    return _in_units(MODEL, {field: getattr(spec, field) for field in spec.__slots__})


def model_shape(name: str, fields: Mapping[str, Any]) -> ModelShape:
    """Return the shape ``name`` from fields of ModelShape; raise CatalogueError with the fault."""
    for key, value in fields.items():
        if key not in SHAPE_FIELDS:
            known = ", ".join(sorted(SHAPE_FIELDS))
            raise CatalogueError(f"Model {name}: shape.{key} is not known. Choose from {known}.")
        if not _is_valid(key, value):
            kind = "true or false" if key in SWITCHES else "a whole number of at least 0"
            raise CatalogueError(f"Model {name}: shape.{key} must be {kind}, not {value!r:.60}.")
    try:
        return ModelShape(name=name, **fields)
    except TypeError as error:
        missing = str(error).partition(": ")[2] or "a value is missing"
        raise CatalogueError(f"Model {name}: shape needs {missing}.") from None
    except SimulationError as error:
        raise CatalogueError(str(error)) from None


def _is_valid(key: str, value: Any) -> bool:
    """Return whether ``value`` is allowed for the shape field ``key``."""
    if key in SWITCHES:
        return isinstance(value, bool)
    if key == "kv_compression":  # a mean over layers, so not a whole number
        return not isinstance(value, str) and 1 <= (finite_number(value) or 0) <= LARGEST
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _values(
    what: str,
    quantities: tuple[Quantity, ...],
    facts: Mapping[str, Any],
    text_fields: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the ``quantities`` in ``facts`` in SI units, by attribute.

    ``facts`` may have ``text_fields`` too, which are left out. ``what`` is named in errors. Raise
    CatalogueError for a field that is unknown, missing or out of range.
    """
    names = [*(quantity.name for quantity in quantities), *text_fields]
    if unknown := next((key for key in facts if key not in names), None):
        raise CatalogueError(f"{what}: {unknown} is not known. Choose from {', '.join(names)}.")
    values: dict[str, Any] = {}
    for quantity in quantities:
        value = facts.get(quantity.name)
        if value is not None and value != "":
            values[quantity.attribute] = _in_si(quantity, value, what)
        elif quantity.required:
            unit = f" in {quantity.unit}" if quantity.unit else ""
            raise CatalogueError(
                f"{what}: {quantity.name} is missing. Give {quantity.label.lower()}{unit}."
            )
    return values


def _in_si(quantity: Quantity, value: Any, what: str) -> float:
    """Return the ``value`` of a quantity in SI units; raise CatalogueError if out of range."""
    number, low, high = finite_number(value), quantity.low, quantity.high
    if number is None or not low <= number <= high or (quantity.whole and number % 1):
        kind = "a whole number" if quantity.whole else "a number"
        unit = f" ({quantity.unit})" if quantity.unit else ""
        raise CatalogueError(
            f"{what}: {quantity.name} must be {kind} from {low:,g} to {high:,g}{unit}, not "
            f"{value!r}."
        )
    return int(number) if quantity.whole else number * quantity.per_unit


def _in_units(quantities: tuple[Quantity, ...], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return SI ``facts`` (by attribute) in users' units, by name; unknown ones are left out."""
    in_units: dict[str, Any] = {}
    for quantity in quantities:
        value = facts.get(quantity.attribute)
        if value is not None:
            # Nine digits hide the rounding error of the conversion.
            number = float(f"{value / quantity.per_unit:.9g}")
            in_units[quantity.name] = int(value) if quantity.whole else number
    return in_units
