"""Build the serving side of a scenario for the simulator and the optimizer.

Built-in facts are looked up. Facts that the scenario states are taken as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.inputs.scenario.columns import (
    SHOWN,
    STAGES,
    Column,
    arrangement,
    arrangements_of,
    spot_name,
    with_role,
)
from planner.inputs.scenario.faults import faults_of
from planner.inputs.scenario.links import links_of
from planner.inputs.scenario.power import host_of, power_at_load
from planner.inputs.scenario.regions import (
    CommittedPrice,
    committed_of,
    price_of,
    region_of,
)
from planner.inputs.scenario.replica_limits import replica_limits
from planner.inputs.scenario.schema import Fault, Profile, Scenario, Serving, Spot, Starts
from planner.inputs.scenario.schema import Tier as TierSection
from planner.inputs.scenario.specs import gpu_of, model_of
from planner.inputs.scenario.speeds import speeds_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet, KvLink, Pool, Region, Routing, Tier, mean_over
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance
from simulation.start_times import Registration, StartUp

AFTER_PREFILL = {"fcfs": "fcfs", "edf": "fcfs", "pf": "pf", "dpa": "pf"}  # schedulers of decodes
NO_SPOT = Spot(capacity=0)
NODES_PER_RACK = 4  # without a topology (assumed)
# Latency between regions that state none: continental. SageServe section 7.1 has < 0.5 s.
FAR_S = 0.030


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """The hardware and serving settings of a scenario, as arrays for planning.

    Axes: ``l`` models, ``r`` regions, ``t`` GPU types, ``g`` columns. A column is a GPU type with
    an arrangement and a role (``planner.inputs.scenario.columns``).
    """

    models: tuple[ModelSpec, ...]
    gpus: tuple[GpuSpec, ...]  # [g] of each column
    columns: tuple[Column, ...]  # [g]
    gpu_types: tuple[GpuSpec, ...]  # [t]; types offered as spot come again at the end
    regions: tuple[Region, ...]
    tiers: tuple[Tier, ...]
    profiles: dict[tuple[int, int], Speed]  # by (l, g); absent: the model does not run there
    sections: dict[tuple[int, int], Profile]  # by (l, g): the row of the scenario's profiles
    links: dict[tuple[int, int], KvLink]  # of prefill pools, by (l, g)
    capacity_gpus: IntArray  # [r, t]
    usd_by_hour: FloatArray  # [24, r, g] of a GPU, by UTC hour
    latency_s: FloatArray  # [r, r], inf if objective.reroute forbids the route
    minimum: IntArray  # [l, r, g]
    maximum: IntArray  # [l, r, g]
    today: IntArray | None  # [l, r, g]; None: not stated
    startup_s: float
    starts: Starts | None
    lent: IntArray | None  # [l, r, g] lent as spot today; None: not stated
    architectures: tuple[str, ...]  # [l]
    serving: tuple[Serving, ...]  # [l]
    registration: Registration | None
    faults: tuple[Fault, ...]  # sections of the scenario
    retries: int  # of a request after its instance fails
    routing: Routing
    reclaims_per_hour: FloatArray  # [r, g] of a spot instance
    lend_share: float | None  # income of a lent instance, as a share of its price
    provenance: tuple[tuple[str, Provenance], ...]  # fact, source
    rack_kw: FloatArray  # [r] power limit of a rack, without PUE; inf: none
    gpus_per_rack: IntArray  # [r, t]
    embodied_g_per_gpu_hour: float
    committed: tuple[CommittedPrice, ...] = ()
    # [l, tiers] whether a model has traffic of a tier; None: not known
    tiers_in_use: BoolArray | None = None

    def _start_up(self, m: int, r: int, g: int) -> StartUp | None:
        """Return the start times of the pool of model ``m``, region ``r`` and column ``g``.

        They depend on where the weights are. None: one time for all.
        """
        if self.starts is None:
            return None
        lent_replicas = 0 if self.lent is None else int(self.lent[m, r, g])
        return StartUp(local_s=self.startup_s, lent=lent_replicas, **self.starts.model_dump())

    def _serving(self, m: int, g: int) -> dict[str, Any]:
        """Return the serving options of a pool of model ``m`` on column ``g``, by field of Pool.

        A decode pool receives sequences without prompts. It cannot schedule by the TTFT deadline
        and cannot cache prefixes.
        """
        serving, decodes = self.serving[m], self.columns[g].role == "decode"
        taus = {"tau_n_s": serving.tau_n_s, "tau_p_s": serving.tau_p_s}
        return {
            "batching": serving.batching,
            "scheduler": AFTER_PREFILL[serving.scheduler] if decodes else serving.scheduler,
            "prefix_cache": serving.prefix_caching and not decodes,
            "when_full": serving.when_full,
            **{name: value for name, value in taus.items() if value is not None},
        }

    def tier(self, name: str) -> Tier:
        """Return the tier with this name."""
        return next(tier for tier in self.tiers if tier.name == name)

    def limits_of(self, m: int) -> list[Tier]:
        """Return the interactive tiers with SLOs that apply to model ``m``.

        These are the tiers in the model's traffic. If the traffic is not known, or none of its
        tiers is interactive, all interactive tiers apply.
        """
        interactive = [tier for tier in self.tiers if not tier.deferrable]
        if self.tiers_in_use is None:
            return interactive
        in_traffic = {self.tiers[t].name for t in np.flatnonzero(self.tiers_in_use[m])}
        return [tier for tier in interactive if tier.name in in_traffic] or interactive

    @property
    def usd_per_gpu_hour(self) -> FloatArray:
        """Return the mean price of a GPU over a day, ``[region, GPU column]``."""
        return _exact_mean(self.usd_by_hour)

    def gpu_usd(self, start_s: float | None, period_s: float) -> FloatArray:
        """Return the mean price of a GPU from ``start_s`` on (None: of a day), ``[r, g]`` USD/h."""
        if start_s is None:
            return self.usd_per_gpu_hour
        return mean_over(self.usd_by_hour, start_s, period_s)

    @property
    def site_kw(self) -> FloatArray:
        """Return the power limit of each site, PUE included, ``[region]``; inf: none."""
        return np.array([region.site_kw for region in self.regions])

    @property
    def types(self) -> IntArray:
        """Return the index in ``gpu_types`` of the GPU type of each column, ``[GPU column]``."""
        return np.array([column.gpu for column in self.columns], np.int64)

    @property
    def stages(self) -> IntArray:
        """Return the role code of each column, ``[GPU column]``: 0 both, 1 prefill, 2 decode."""
        return np.array([STAGES[column.role] for column in self.columns], np.int64)

    @property
    def has_one_column_per_gpu(self) -> bool:
        """Return whether no columns share a GPU type and none has a role or is spot.

        Planning is then simpler: each column is an owned GPU type with aggregated pools.
        """
        is_one_per_type = len(self.columns) == len(self.gpu_types)
        return is_one_per_type and not self.stages.any() and not self.spot.any()

    def arrangement(self, m: int, g: int) -> str:
        """Return how model ``m`` runs on column ``g``, for a table, such as "8 x H100, fp8".

        A role other than "both" is appended, and so is "spot".
        """
        name = arrangement(self.sections[m, g], self.profiles[m, g])
        name = with_role(name, self.columns[g].role)
        return spot_name(name) if self.columns[g].spot else name

    @property
    def spot(self) -> BoolArray:
        """Return a mask of the columns of spot GPUs, which the provider may reclaim, ``[g]``."""
        return np.array([column.spot for column in self.columns], np.bool_)

    @property
    def type_names(self) -> tuple[str, ...]:
        """Return the names of ``gpu_types``, owned and spot, for messages."""
        spot_types = {column.gpu for column in self.columns if column.spot}
        names = []
        for gpu_type, gpu in enumerate(self.gpu_types):
            names.append(spot_name(gpu.name) if gpu_type in spot_types else gpu.name)
        return tuple(names)

    def market(self, g: int) -> str:
        """Return the market of column ``g`` in the words of documents: "owned" or "spot"."""
        return "spot" if self.columns[g].spot else "owned"

    def capacity_of_region(self, carried_tps: FloatArray) -> float:
        """Return the input tokens/s that a model's pools in one region can serve.

        ``carried_tps`` ``[GPU column]`` is the capacity of the pool of each column. It is the lower
        of two totals: of the columns that prefill, and of those that decode. Aggregated columns are
        in both.
        """
        prefills, decodes = self.stages != STAGES["decode"], self.stages != STAGES["prefill"]
        return float(min(carried_tps[prefills].sum(), carried_tps[decodes].sum()))

    def kv_link(self, m: int) -> KvLink | None:
        """Return the KV link of the first prefill pool of model ``m``; None without such a pool."""
        for (model, _), link in self.links.items():
            if model == m:
                return link
        return None

    def role(self, g: int) -> str:
        """Return the role of column ``g`` as in documents: "mixed", "prefill" or "decode"."""
        return SHOWN[self.columns[g].role]

    def reserved_prices(
        self, term: str, starts_s: Iterable[float], period_s: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return prices in USD per GPU-hour: reserved, and on demand.

        Reserved prices are ``[region, GPU type]``, and infinite for spot and without an offer for
        ``term`` (one_year or three_years). Prices on demand are means over periods, ``[period,
        region, GPU type]``. ``starts_s`` are the starts of the periods (epoch seconds), and
        ``period_s`` is their length.
        """
        shape = len(self.regions), len(self.gpu_types)
        usd_of_columns = np.stack([self.gpu_usd(start_s, period_s) for start_s in starts_s])
        on_demand = np.zeros((len(usd_of_columns), *shape))
        on_demand[:, :, self.types] = usd_of_columns
        reserved = np.full(shape, np.inf)
        regions = [region.name for region in self.regions]
        owned_types = {self.gpu_types[c.gpu].name: c.gpu for c in self.columns if not c.spot}
        for offer in self.committed:
            if offer.term == term and offer.gpu in owned_types:
                gpu_type = owned_types[offer.gpu]
                reserved[regions.index(offer.region), gpu_type] = offer.usd_per_gpu_hour
        return reserved, on_demand

    @property
    def model_region_gpu(self) -> list[tuple[int, int, int]]:
        """Return the indices (model, region, GPU column) of each pool, as ``fleet`` orders them."""
        return [
            (m, r, g)
            for m in range(len(self.models))
            for r in range(len(self.regions))
            for g in range(len(self.gpus))
            if (m, g) in self.profiles and self.maximum[m, r, g] > 0
        ]

    def fleet(self, initial: IntArray) -> Fleet:
        """Return a fleet to simulate, which starts with the replicas ``initial``, ``[l, r, g]``."""
        pools = tuple(
            self._pool(m, r, g, int(initial[m, r, g])) for m, r, g in self.model_region_gpu
        )
        return Fleet(
            tiers=self.tiers,
            regions=self.regions,
            pools=pools,
            latency_s=self.latency_s,
            routing=self.routing,
            registration=self.registration,
            faults=faults_of(self.faults, pools),
            retries=self.retries,
        )

    def _pool(self, m: int, r: int, g: int, initial: int) -> Pool:
        """Return the pool of a model, region and GPU column, with its ``initial`` replicas."""
        model, profile = self.models[m], self.profiles[m, g]
        gpu, column = self.gpus[g], self.columns[g]
        host_w, _ = host_of(gpu)
        return Pool(
            model=model.name,
            region=self.regions[r].name,
            profile=profile,
            gpu=gpu,
            initial=initial,
            minimum=int(self.minimum[m, r, g]),
            maximum=int(self.maximum[m, r, g]),
            startup_s=self.startup_s,
            usd_per_gpu_hour=float(self.usd_per_gpu_hour[r, g]),
            usd_by_hour=tuple(self.usd_by_hour[:, r, g].tolist()),
            max_context=model.max_context,
            power=power_at_load(model, gpu, profile),
            host_w=host_w,
            role=column.role,
            architecture=self.architectures[m],
            start_up=self._start_up(m, r, g),
            spot=column.spot,
            reclaims_per_hour=float(self.reclaims_per_hour[r, g]),
            lend_share=None if column.spot else self.lend_share,
            embodied_g_per_gpu_hour=self.embodied_g_per_gpu_hour,
            **self._serving(m, g),
            link=self.links.get((m, g)),
        )


def build_hardware(
    scenario: Scenario, user_facts: UserFacts = NO_USER_FACTS, *, spot: bool = False
) -> Hardware:
    """Return the hardware and serving settings of ``scenario``: everything except its traffic.

    ``user_facts`` has the user's own models, GPUs, prices and profiles that the scenario names.
    With ``spot``, the GPUs that regions offer as spot are included.

    Raises ScenarioError that names the unknown entry and the known ones.
    """
    facts: list[tuple[str, Provenance]] = []
    # Models and owned GPU types, and the speed of each profile.
    models = tuple(model_of(section, user_facts) for section in scenario.models)
    facts += [(f"Memory of {model.name}", model.provenance) for model in models]
    variants = [variant for profile in scenario.profiles for variant in profile.variants]
    gpu_names = list(dict.fromkeys(variant.gpu for variant in variants))
    types = tuple(gpu_of(scenario, name, user_facts) for name in gpu_names)
    facts += [(f"Memory and power of {gpu.name}", gpu.provenance) for gpu in types]
    gpus = dict(zip(gpu_names, types, strict=True))
    speeds = speeds_of(scenario, variants, models, gpus, user_facts, facts)

    owned = arrangements_of(variants, speeds, [model.name for model in models], gpu_names)
    # The fleet's columns. Spot types come after all owned types.
    offered_as_spot = {name for region in scenario.regions for name in region.spot if spot}
    spot_gpu_names = [name for name in gpu_names if name in offered_as_spot]
    owned_types = [gpu_names.index(name) for name in spot_gpu_names]
    fleet = owned.with_spot({t: len(gpu_names) + i for i, t in enumerate(owned_types)})
    types = (*types, *(types[t] for t in owned_types))
    # Prices and limits, which regions state by GPU type, by column.
    offers = _offers(scenario, gpu_names, spot_gpu_names, facts, user_facts)
    gpu_of_column = [column.gpu for column in fleet.columns]
    usd_by_hour = offers.usd_by_hour[:, :, gpu_of_column]  # [24, r, g]
    limits = replica_limits(scenario, fleet, offers.capacity, _exact_mean(usd_by_hour))
    registration = scenario.fleet.registration
    serving_of_model = {section.model: section for section in scenario.serving}
    for_other_models = serving_of_model.get(None, Serving())
    serving = tuple(serving_of_model.get(model.name, for_other_models) for model in scenario.models)
    transfers = [settings.kv_transfer for settings in serving]
    return Hardware(
        models=models,
        gpus=tuple(types[column.gpu] for column in fleet.columns),
        columns=fleet.columns,
        gpu_types=types,
        regions=offers.regions,
        tiers=tuple(_tier(section) for section in scenario.tiers),
        profiles=fleet.speeds,
        sections=fleet.sections,
        links=links_of(models, types, fleet, transfers, facts),
        capacity_gpus=offers.capacity,
        usd_by_hour=usd_by_hour,
        latency_s=_latency(scenario),
        **limits._asdict(),
        startup_s=scenario.fleet.startup_s,
        starts=scenario.fleet.starts,
        architectures=tuple(model.architecture for model in scenario.models),
        serving=serving,
        registration=(
            Registration(registration.ratio, registration.tolerance) if registration else None
        ),
        faults=tuple(scenario.faults),
        retries=scenario.fleet.retries,
        reclaims_per_hour=offers.reclaims_per_hour[:, gpu_of_column],
        lend_share=scenario.objective.lend_share,
        routing=Routing(**scenario.fleet.routing.model_dump()),
        provenance=tuple(facts),
        **_power_limits(scenario, types),
        embodied_g_per_gpu_hour=scenario.fleet.embodied_g_per_gpu_hour,
        committed=offers.committed,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Offers:
    """The regions, and their capacity and prices of each GPU type: owned types, then spot types."""

    regions: tuple[Region, ...]
    capacity: IntArray  # [r, t] GPUs
    usd_by_hour: FloatArray  # [24, r, t] of a GPU, by UTC hour
    reclaims_per_hour: FloatArray  # [r, t] of a spot instance
    committed: tuple[CommittedPrice, ...]


def _offers(
    scenario: Scenario,
    owned_names: Sequence[str],
    spot_names: Sequence[str],
    facts: list[tuple[str, Provenance]],
    user_facts: UserFacts,
) -> _Offers:
    """Return what regions offer of the GPU types ``owned_names``, and of ``spot_names`` as spot.

    Adds the sources of prices and other facts to ``facts``.
    """
    regions, capacity, usd, reclaims = [], [], [], []
    committed: list[CommittedPrice] = []
    for section in scenario.regions:
        regions.append(region_of(section, facts))
        prices = [price_of(section, name, facts, user_facts) for name in owned_names]
        for name in owned_names:
            committed += committed_of(section, name, facts, user_facts)
        prices += [price_of(section, name, facts, user_facts, spot=True) for name in spot_names]
        usd.append(prices)
        spot = [section.spot.get(name, NO_SPOT) for name in spot_names]
        owned_gpus = [section.capacity.get(name, 0) for name in owned_names]
        capacity.append(owned_gpus + [offer.capacity for offer in spot])
        spot_reclaims = [offer.reclaims_per_instance_hour for offer in spot]
        reclaims.append([0.0] * len(owned_names) + spot_reclaims)
    return _Offers(
        regions=tuple(regions),
        capacity=np.array(capacity, np.int64),
        usd_by_hour=np.moveaxis(np.array(usd, np.float64), -1, 0),
        reclaims_per_hour=np.array(reclaims, np.float64),
        committed=tuple(committed),
    )


def _tier(section: TierSection) -> Tier:
    """Return the tier of a section, with its limits in seconds."""
    limits_ms = {f"{name}_s": getattr(section, f"{name}_ms") for name in ("ttft", "tbt", "e2e")}
    return Tier(
        name=section.name,
        **{name: None if ms is None else ms / 1000 for name, ms in limits_ms.items()},
        attainment=section.percentile / 100,
        deferrable=section.deferrable,
        priority_after_s=section.priority_after_s,
        utility=section.utility,
    )


def _power_limits(scenario: Scenario, types: Sequence[GpuSpec]) -> dict[str, Any]:
    """Return the fields ``rack_kw`` and ``gpus_per_rack`` of Hardware."""
    regions = scenario.regions
    rack_kw = np.full(len(regions), np.inf)
    per_rack = np.ones((len(regions), len(types)), np.int64)
    for r, region in enumerate(regions):
        tree, power = region.topology, region.power
        nodes = tree.nodes_per_rack if tree else NODES_PER_RACK
        gpus_per_node = tree.gpus_per_node if tree else {}
        per_rack[r] = [nodes * gpus_per_node.get(gpu.name, gpu.gpus_per_node) for gpu in types]
        if power is not None:
            rack_kw[r] = power.rack_kw or np.inf
            per_rack[r] = power.gpus_per_rack or per_rack[r]
    return {"rack_kw": rack_kw, "gpus_per_rack": per_rack}


def _exact_mean(values: FloatArray) -> FloatArray:
    """Return the mean over the first axis, exact (without rounding) if all values are equal."""
    mean: FloatArray = values[0] + (values - values[0]).mean(axis=0)
    return mean


def _latency(scenario: Scenario) -> FloatArray:
    """Return the one-way latencies between regions in seconds, ``[home region, serving region]``.

    A stated latency holds in both directions, unless the other region states one too. Without one,
    it is FAR_S. Routes that the objective does not allow have an infinite latency.
    """
    stated = {region.name: region.latency_ms for region in scenario.regions}
    reroute = scenario.objective.reroute  # None: all routes are allowed
    latency_s = np.full((len(stated), len(stated)), FAR_S)
    np.fill_diagonal(latency_s, 0.0)
    for i, home in enumerate(stated):
        for j, other in enumerate(stated):
            latency_ms = stated[home].get(other, stated[other].get(home))
            if latency_ms is not None:
                latency_s[i, j] = latency_ms / 1000
            if i != j and reroute is not None and not reroute.get(home, {}).get(other):
                latency_s[i, j] = np.inf
    return latency_s
