"""Define the query for a deployment, and the price of each GPU type."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from planner.domain.options import Option, RunOptions, options_in
from planner.inputs import catalogue
from simulation.fleet import Tier
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import BYTES, Provenance
from simulation.search.values import Requests

LIMITS = "limits"  # name of the tier that has the limits of the query
RELEASED = "released"  # the precision of the published weights
WEIGHTS = (RELEASED, *BYTES)
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Milliseconds = Annotated[float, Field(gt=0, le=1e8)]
Price = Annotated[float, Field(gt=0, le=1e6)]


class DeploymentQuery(RunOptions):
    """The request for a search: model, lengths, limits and allowed hardware.

    The options of the command, the API and the page are derived from it.
    """

    model: str = Field(title="Model", max_length=200)
    """Model of the catalogue, or your own."""
    isl: Tokens = Field(title="Input tokens")
    """Input tokens of a request."""
    osl: Tokens = Field(title="Output tokens")
    """Output tokens of a request."""
    ttft_ms: Milliseconds | None = Field(None, title="TTFT limit, ms")
    """Time to first token."""
    tbt_ms: Milliseconds | None = Field(None, title="TPOT limit, ms")
    """Time per output token."""
    percentile: float = Field(
        95.0,
        title="Percentile",
        ge=50,
        lt=100,
        json_schema_extra={"give": "a number from 50 to below 100, such as 95"},
    )
    """Percent of requests within the limits. Default: 95."""
    rps: Annotated[float, Field(gt=0, le=1e6)] | None = Field(None, title="Requests per second")
    """Requests/s of all replicas. Default: rank by $ per token."""
    gpus: tuple[Annotated[str, Field(max_length=80)], ...] = Field(
        (), title="GPUs you have", max_length=100
    )
    """GPU types. Default: all."""
    engines: tuple[Literal[ENGINES], ...] = Field(  # type: ignore[valid-type]
        ENGINES, title="Engines", max_length=len(ENGINES)
    )
    """Engines. Default: all."""
    precisions: tuple[Literal[WEIGHTS], ...] = Field(  # type: ignore[valid-type]
        (), title="Precisions", max_length=len(WEIGHTS)
    )
    """Precisions of weights; released: as published. Default: all."""
    top: int = Field(10, title="Candidates", ge=1, le=100)
    """Candidates to list. Default: 10."""
    prices: dict[str, Price] = Field(
        {},
        title="Own prices",
        json_schema_extra={"give": "dollars per GPU-hour above 0, such as H100-SXM=2.5"},
    )
    """USD per GPU-hour by GPU type. Default: median on-demand price."""
    seed: int = 0
    disaggregated: bool = True  # search these too; they take most of the time

    @property
    def requests(self) -> Requests:
        """Return the requests and limits as the search takes them."""
        tier = Tier(
            LIMITS,
            ttft_s=None if self.ttft_ms is None else self.ttft_ms / 1000,
            tbt_s=None if self.tbt_ms is None else self.tbt_ms / 1000,
            attainment=self.percentile / 100,
        )
        return Requests(self.isl, self.osl, tier, self.rps)


# Options that the command, the API and the page have in common; each has its own for prices.
ASKED: dict[str, Option] = {
    name: option
    for name, option in options_in(DeploymentQuery).items()
    if name not in ("prices", "seed", "disaggregated")
}


@dataclass(frozen=True, slots=True)
class HourPrice:
    """The price of one GPU in USD per hour, with its source; NaN if it is not known."""

    usd: float
    provenance: Provenance


def price_of(gpu: str, prices: Mapping[str, float]) -> HourPrice:
    """Return the price of a GPU type: from ``prices``, else the median of on-demand offers.

    It is NaN if there is no offer.
    """
    if gpu in prices:
        return HourPrice(prices[gpu], Provenance("assumed", "as given"))
    offers_usd, kinds = [], []
    for offer in catalogue.prices():
        if offer.gpu == gpu and offer.usd_per_gpu_hour is not None:
            offers_usd.append(offer.usd_per_gpu_hour)
            kinds.append(offer.provenance.kind)
    if not offers_usd:
        return HourPrice(math.nan, Provenance("assumed", "no known price. Enter one"))
    span = f"${min(offers_usd):.2f} to ${max(offers_usd):.2f}"
    source = f"median of {len(offers_usd)} on-demand offers, {span}"
    return HourPrice(median(offers_usd), Provenance(kinds[0], source))
