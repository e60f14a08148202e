"""Group pools into services: a model in a region, aggregated or with prefill and decode pools."""

from collections.abc import Iterable
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.outputs.object_names import name_of
from planner.outputs.pools import Pool

MIXED = ("mixed", "both")


@dataclass(frozen=True, slots=True)
class Service:
    """The pools that serve a model in a region; without ``prefill``, ``decode`` does both."""

    name: str
    decode: Pool
    prefill: Pool | None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools of the service, prefill first."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)


def services(pools: Iterable[Pool], export_format: str) -> list[Service]:
    """Return the services of ``pools``: an aggregated pool, or a prefill and a decode pool.

    Raises PlannerError if a disaggregated service does not have exactly one pool of each role,
    because the export format cannot describe it.
    """
    services: list[Service] = []
    disaggregated: dict[tuple[str, str, str], dict[str, list[Pool]]] = {}  # then by role
    for pool in pools:
        if pool.role in MIXED:
            services.append(Service(pool.name, decode=pool, prefill=None))
        else:
            place = pool.model, pool.region, pool.market
            by_role = disaggregated.setdefault(place, {"prefill": [], "decode": []})
            by_role[pool.role].append(pool)
    for (model, region, market), by_role in disaggregated.items():
        prefill, decode = by_role["prefill"], by_role["decode"]
        if len(prefill) != 1 or len(decode) != 1:
            raise PlannerError(
                f"{model} in {region} has {len(prefill)} pools of prefill and {len(decode)} of "
                f"decode, and {export_format} takes one of each. Export it to keda."
            )
        name = name_of([model, "spot" if market == "spot" else "", region])
        services.append(Service(name, decode[0], prefill[0]))
    return services
