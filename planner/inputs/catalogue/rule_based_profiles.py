"""Make profiles of recent models on common GPU types by rule, without measurements.

The rule: every model of ``FAMILIES`` on every type of ``GPUS``, with weights as released. Each uses
the fewest GPUs of one server (a power of two) that hold the weights and ``SEQUENCES`` sequences of
``CONTEXT`` tokens. Each states its possible error. A profile is computed once, on first use.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.hardware import gpus, models, published_precision, shape
from planner.inputs.catalogue.measured_profiles import engine_title, profiles
from planner.inputs.catalogue.serving import ENGINE, MAX_BATCH, MAX_BATCH_TOKENS, serving_limits
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.curves import Curve
from simulation.performance.memory import largest_batch
from simulation.performance.profile import Check
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape, Provenance

GPUS = ("H100-SXM", "H200", "B200", "MI300X")
# Prefixes of the model names of each family's current generation.
FAMILIES = (
    "deepseek-r1", "deepseek-v3", "deepseek-v4", "ernie-4.5", "gemma-3-", "gemma-4", "glm-4.5",
    "glm-4.6", "glm-5", "gpt-oss", "granite-4", "kimi-k", "llama-3.1", "llama-3.3", "llama-4",
    "minimax-m", "mistral-large", "mistral-small", "nemotron-3", "olmo-3", "phi-4", "qwen3",
)  # fmt: skip
ONE_SERVER = (1, 2, 4, 8)  # GPUs per instance
SEQUENCES, CONTEXT = 16, 8192


@dataclass(frozen=True, slots=True)
class ModelledProfile:
    """A ``Profile`` whose latency curve is computed on first use."""

    model: str
    gpu: str
    tp: int
    precision: str  # precision of the weights, as released

    @property
    def kind(self) -> str:
        return "roofline"

    @property
    def max_batch(self) -> int:
        return MAX_BATCH

    @property
    def max_batch_tokens(self) -> int:
        return MAX_BATCH_TOKENS

    @property
    def provenance(self) -> Provenance:
        """Return where the profile's speeds come from: a computation, not a run."""
        return Provenance(
            "modelled",
            f"not measured: computed from the published peaks of {self.gpu} and the efficiency of "
            f"measured kernels, for {engine_title(ENGINE)}",
        )

    @property
    def kv_capacity_tokens(self) -> int:
        return _graph_profile(self).kv_capacity_tokens

    @property
    def curve(self) -> Curve:
        return _graph_profile(self).curve

    @property
    def checks(self) -> tuple[Check, ...]:
        return _graph_profile(self).checks

    @property
    def start_s(self) -> float:
        return _graph_profile(self).start_s

    @property
    def spread(self) -> float:
        return _graph_profile(self).spread


@cache
def modelled_profiles() -> tuple[ModelledProfile, ...]:
    """Return the profiles of the rule (see the module) that fit a server and are not measured."""
    unmeasured = []
    for name in sorted(models()):
        for gpu in GPUS if name.startswith(FAMILIES) else ():
            profile = modelled_profile(name, gpu)
            if profile is not None and (name, gpu, profile.tp) not in profiles():
                unmeasured.append(profile)
    return tuple(unmeasured)


def modelled_profile(model: str, gpu: str) -> ModelledProfile | None:
    """Return the profile of a model on a GPU type by the rule; None if it does not fit a server."""
    precision = published_precision(model)
    tp = _fewest_gpus(shape(model), gpus()[gpu], precision)
    return None if tp is None else ModelledProfile(model, gpu, tp, precision)


def _fewest_gpus(shape_of_model: ModelShape, gpu: GpuSpec, precision: str) -> int | None:
    """Return the smallest number of GPUs for one instance; None if one server is too small."""
    length = min(CONTEXT, shape_of_model.max_context)
    for tp in ONE_SERVER:
        if shape_of_model.heads % tp or tp > gpu.gpus_per_node:
            continue
        arrangement = Arrangement(tp=tp, weights=precision)
        if largest_batch(shape_of_model, gpu, arrangement, length, MAX_BATCH_TOKENS) >= SEQUENCES:
            return tp
    return None


@lru_cache(maxsize=512)
def _graph_profile(deployment: ModelledProfile) -> GraphProfile:
    """Return the roofline profile of a modelled deployment."""
    model_shape, gpu = shape(deployment.model), gpus()[deployment.gpu]
    arrangement = Arrangement(tp=deployment.tp, weights=deployment.precision)
    limits = serving_limits(model_shape, gpu, arrangement)
    return roofline_profile(model_shape, gpu, arrangement, efficiencies(), limits)
