"""What may be chosen when work is started, by kind of run. The choices are the scenario file's."""

from __future__ import annotations

from typing import Any, get_args

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from planner.api.serializers.strict import FiniteField, StrictSerializer
from planner.errors import IngestError, ScenarioError
from planner.ingest.formats import OFFERED
from planner.ingest.options import IngestOptions, Offered, column_mapping
from planner.ingest.source import KINDS_OF_FILE
from planner.models import Run
from planner.policies.choice import ALL, known_policy
from planner.policies.own import policy_names
from planner.scenario.schema import Forecast, Objective
from planner.studies.commands.pareto import MOST_POINTS, pair_of
from planner.studies.commands.place import COUNTS
from planner.studies.commands.place import METHODS as METHODS_PLACING
from planner.studies.commands.size import MOST_TOKENS
from planner.studies.pd.service import MOST_INSTANCES
from planner.studies.provisioning.over_time import OVER_TIME
from planner.studies.provisioning.problems import BATCH_WAITS, SOURCES
from simulation.provisioning.levels import LEVELS
from simulation.provisioning.levels import METHODS as METHODS_BELOW

SOLVERS = get_args(Objective.model_fields["solver"].annotation)
MINIMISE = get_args(Objective.model_fields["minimise"].annotation)
PERIODS = get_args(Objective.model_fields["periods"].annotation)
METHODS = get_args(Forecast.model_fields["method"].annotation)
TIME_LIMIT_S = 3600.0
SEED_MAX = 2**31 - 1
ORIGINS = ("scenario", "document", "trace")


class ForecastOptions(StrictSerializer):
    method = serializers.ChoiceField(
        METHODS, required=False, help_text="Left out: the scenario's forecast.method."
    )


class PlanOptions(StrictSerializer):
    """Left out: the scenario's objective."""

    solver = serializers.ChoiceField(SOLVERS, required=False)
    gap = FiniteField(
        min_value=0, max_value=1, required=False, help_text="Of fleet cost, a fraction."
    )
    time_limit_s = FiniteField(
        min_value=0.1, max_value=TIME_LIMIT_S, required=False, help_text="Seconds."
    )
    verify = serializers.BooleanField(
        required=False,
        help_text="Replay the plan and correct sizes until both agree; left out: no.",
    )
    minimise = serializers.ChoiceField(MINIMISE, required=False)
    periods = serializers.ChoiceField(
        PERIODS, required=False, help_text="one after the other, or all in one program."
    )


class PolicyField(serializers.CharField):
    """A policy's name, with a label after a colon where the scenario has several of one name."""

    def __init__(self, *, every: bool = False, **kwargs: Any) -> None:
        super().__init__(max_length=161, **kwargs)
        self._every = every  # "all" stands for every policy

    def to_internal_value(self, data: Any) -> str:
        given: str = super().to_internal_value(data)
        if not known_policy(given) and not (self._every and given == ALL):
            raise serializers.ValidationError(
                f"There is no policy {given!r}; choose from {', '.join(policy_names())}."
            )
        return given


class SimulateOptions(StrictSerializer):
    policy = PolicyField(help_text="As in a scenario; with a label, name:label.")
    seed = serializers.IntegerField(
        min_value=0, max_value=SEED_MAX, required=False, help_text="Left out: the scenario's seed."
    )
    requests = serializers.BooleanField(
        required=False, help_text="Keep a table with a row per request; left out: no."
    )


class CompareOptions(StrictSerializer):
    policies = serializers.ListField(
        child=PolicyField(every=True),
        min_length=1,
        max_length=100,
        required=False,
        help_text="Left out: the scenario's policies; all by itself: every policy there is.",
    )


class ProvisionOptions(StrictSerializer):
    level = serializers.ChoiceField((*LEVELS, "all"), required=False, help_text="Left out: all.")
    method = serializers.ChoiceField(
        METHODS_BELOW,
        required=False,
        help_text="Left out: greedy. exact: fewest slots, proven; brute: by enumeration, small "
        "cases only.",
    )
    kernels = serializers.ChoiceField(
        SOURCES,
        required=False,
        help_text="Left out: auto, measured kernels that were uploaded for the GPU, else "
        "efficiency factors.",
    )
    interference = serializers.ChoiceField(
        SOURCES,
        required=False,
        help_text="Left out: auto, measured slowdowns of those files, else the physical model.",
    )
    images = FiniteField(
        min_value=0, required=False, help_text="Per request, of models with an encoder; 0."
    )
    image_tokens = FiniteField(
        min_value=1, required=False, help_text="That the encoder reads per image; 1024 (assumed)."
    )
    single_stream = serializers.BooleanField(
        required=False,
        help_text="GPUs run one stream at a time: extra replicas stand beside nothing.",
    )
    batch_wait = serializers.ChoiceField(
        BATCH_WAITS,
        required=False,
        help_text="Left out: free, as in the source. counted: the time that batches take to fill "
        "is part of the latency, and the largest batch is chosen with the plan.",
    )
    over_time = serializers.ChoiceField(
        OVER_TIME,
        required=False,
        help_text="Left out: off. Also window by window along the traffic, plans made on what was "
        "observed before or on a forecast by the minute.",
    )


class PlaceOptions(StrictSerializer):
    method = serializers.ChoiceField(
        (*METHODS_PLACING, "all"), required=False, help_text="Left out: all."
    )
    counts = serializers.ChoiceField(
        COUNTS,
        required=False,
        help_text="Today's fleet, the plan's largest or last period; left out: today's where the "
        "scenario has it, else the largest.",
    )
    ratio = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=10_000),
        min_length=2,
        max_length=2,
        required=False,
        help_text="Prefill and decode instances: mixed pools are placed apart in this ratio.",
    )
    grow = FiniteField(
        min_value=0,
        max_value=100,
        required=False,
        help_text="Then scale out by this share and in again; left out: 0.5, 0: do not.",
    )
    time_limit_s = FiniteField(
        min_value=0.1,
        max_value=TIME_LIMIT_S,
        required=False,
        help_text="Seconds of the exact method; left out: 10.",
    )


class SizeOptions(StrictSerializer):
    isl = serializers.IntegerField(
        min_value=1, max_value=MOST_TOKENS, required=False,
        help_text="Input tokens of all requests, with osl. Left out: as in the traffic.",
    )  # fmt: skip
    osl = serializers.IntegerField(
        min_value=1, max_value=MOST_TOKENS, required=False, help_text="Output tokens, with isl."
    )
    burstiness = serializers.CharField(
        max_length=20,
        required=False,
        help_text="poisson (left out), trace, or the squared coefficient of variation of the "
        "times between arrivals.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("isl" in attrs) != ("osl" in attrs):
            missing = "osl" if "isl" in attrs else "isl"
            raise serializers.ValidationError({missing: ["Give isl and osl, or neither."]})
        checked: dict[str, Any] = super().validate(attrs)
        return checked


class PdRatioOptions(StrictSerializer):
    service = serializers.CharField(max_length=120, help_text="A model of the scenario.")
    instances = serializers.IntegerField(
        min_value=2,
        max_value=MOST_INSTANCES,
        required=False,
        help_text="Prefill and decode together. Left out: as many as fit, at most 16.",
    )
    prefill = serializers.CharField(
        max_length=120, required=False, help_text="GPU type. Left out: the best per dollar."
    )
    decode = serializers.CharField(max_length=120, required=False, help_text="Likewise.")


class ParetoOptions(StrictSerializer):
    of = serializers.CharField(
        max_length=40, required=False, help_text="Two of cost, gpu-hours, energy, carbon, with a "
        "comma; left out: cost,carbon.",
    )  # fmt: skip
    points = serializers.IntegerField(
        min_value=2, max_value=MOST_POINTS, required=False, help_text="Left out: 9."
    )

    def validate_of(self, value: str) -> str:
        try:
            return ",".join(pair_of(value))
        except ScenarioError as problem:
            raise serializers.ValidationError(str(problem)) from None


OPTIONS: dict[str, type[StrictSerializer]] = {
    Run.Kind.FORECAST: ForecastOptions,
    Run.Kind.PLAN: PlanOptions,
    Run.Kind.SIMULATE: SimulateOptions,
    Run.Kind.COMPARE: CompareOptions,
    Run.Kind.PROVISION: ProvisionOptions,
    Run.Kind.PLACE: PlaceOptions,
    Run.Kind.PARETO: ParetoOptions,
    Run.Kind.SIZE: SizeOptions,
    Run.Kind.PD_RATIO: PdRatioOptions,
}


WORK = [kind for kind in Run.Kind.choices if kind[0] in OPTIONS]


@extend_schema_field(OpenApiTypes.BINARY)
class BytesField(serializers.FileField):
    """A file that goes in; the library takes it for the address of one that comes out."""


class UploadRequest(StrictSerializer):
    """A file and how to read it; everything is detected unless it is said here."""

    file = BytesField(
        max_length=255,
        help_text=f"{KINDS_OF_FILE}.",
        error_messages={"empty": "The file is empty; export it again."},
    )
    map = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        help_text="Columns by field, each FIELD=COLUMN; repeat it for several.",
    )

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {name: _offered(option) for name, option in OFFERED.items()}

    def validate_map(self, value: list[str]) -> dict[str, str]:
        try:
            return column_mapping(value)
        except IngestError as problem:
            raise serializers.ValidationError(str(problem)) from None

    def options(self) -> IngestOptions:
        """Raises IngestError where the parts contradict one another."""
        chosen: dict[str, Any] = self.validated_data
        return IngestOptions.of(chosen["file"].name, chosen, chosen.get("map"))


def _offered(option: Offered) -> serializers.Field[Any, Any, Any, Any]:
    if option.switch:
        return serializers.BooleanField(default=False, help_text=option.help)
    if option.choices:
        choices = list(option.choices)
        return serializers.ChoiceField(choices, default=choices[0], help_text=option.help)
    return serializers.CharField(max_length=80, required=False, help_text=option.help)


class ScenarioGiven(StrictSerializer):
    """A kept scenario, or one that is only for this run."""

    scenario = serializers.CharField(
        max_length=120, required=False, help_text="Name or id of a kept scenario."
    )
    document = serializers.CharField(
        required=False, trim_whitespace=False, help_text="A scenario file, YAML, not kept."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        origins = [name for name in ORIGINS if name in self.fields]
        if len([name for name in origins if name in attrs]) != 1:
            raise serializers.ValidationError(f"Give exactly one of {', '.join(origins)}.")
        return attrs

    def options(self) -> dict[str, Any]:
        """What was chosen besides what to work on."""
        given = self.validated_data
        return {k: v for k, v in given.items() if k not in ORIGINS}


class ForecastRequest(ScenarioGiven, ForecastOptions):
    """A scenario's demand, or that of one trace as it came."""

    trace = serializers.CharField(max_length=120, required=False, help_text="Name or id.")
    bin_s = FiniteField(min_value=1, max_value=86400, required=False, help_text="Trace: 900.")
    horizon_s = FiniteField(
        min_value=1, max_value=31 * 86400, required=False, help_text="Trace: 3600."
    )
    origins = serializers.IntegerField(
        min_value=0,
        max_value=100,
        required=False,
        help_text="Trace: past moments to forecast from for the errors of each method; 0 for none.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "trace" not in attrs:
            for name in ("bin_s", "horizon_s", "origins"):
                if name in attrs:
                    raise serializers.ValidationError(
                        {name: ["This goes with a trace; a scenario has its own horizon."]}
                    )
        return super().validate(attrs)


class PlanRequest(ScenarioGiven, PlanOptions):
    pass


class SimulateRequest(ScenarioGiven, SimulateOptions):
    pass


class CompareRequest(ScenarioGiven, CompareOptions):
    pass


class ProvisionRequest(ScenarioGiven, ProvisionOptions):
    pass


class PlaceRequest(ScenarioGiven, PlaceOptions):
    pass


class SizeRequest(SizeOptions, ScenarioGiven):
    pass


class PdRatioRequest(ScenarioGiven, PdRatioOptions):
    pass


class ParetoRequest(ScenarioGiven, ParetoOptions):
    pass


class RunRequest(StrictSerializer):
    """Which run of a kept scenario."""

    kind = serializers.ChoiceField(WORK)
    options = serializers.DictField(
        required=False, help_text="The options of the kind, as under /forecast/ to /compare/."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        chosen = OPTIONS[attrs["kind"]](data=attrs.get("options", {}))
        if not chosen.is_valid():
            raise serializers.ValidationError({"options": chosen.errors})
        return {"kind": attrs["kind"], "options": dict(chosen.validated_data)}
