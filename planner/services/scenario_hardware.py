"""Look up the user's own GPUs, models, profiles and prices that a scenario names, for a new run.

The run stores the answer: the facts of GPUs and models, and the versions of profiles, which never
change. So later edits and fits do not change what a run was based on.
"""

from planner.errors import NotFound, ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.price_lists import OwnPrice
from planner.inputs.scenario.schema import Scenario
from planner.models import Calibration, OwnGpu, OwnModel, PriceList
from planner.selectors.measured_corrections import stored_rows
from planner.selectors.profiles import profile_get
from planner.selectors.run_hardware import ResolvedHardware, StoredPrices, StoredSpec, StoredVersion

LISTED = 12  # most price lists that an error message names


def resolve_scenario(scenario: Scenario) -> ResolvedHardware:
    """Return the user's facts, measurements and prices that a scenario uses, to store with a run.

    GPU types and models that the scenario describes in full are left out. Raises ScenarioError for
    a profile or price list that does not exist.
    """
    gpus = {section.gpu for section in scenario.profiles}
    models = {section.model for section in scenario.profiles}
    described = {gpu.name for gpu in scenario.gpus if gpu.in_full}
    described |= {model.name for model in scenario.models if model.in_full}
    has_estimates = any(section.kind == "roofline" for section in scenario.profiles)
    return ResolvedHardware(
        gpus=_specs(OwnGpu, gpus - described - set(catalogue.gpus())),
        models=_specs(OwnModel, models - described - set(catalogue.models())),
        profiles=_profiles(scenario),
        kernels=_kernels(gpus),
        measured=stored_rows() if has_estimates else [],  # measurements correct estimates
        prices=_prices(scenario),
    )


def _profiles(scenario: Scenario) -> dict[str, StoredVersion]:
    """Return the stored profiles that a scenario names, by name."""
    profiles: dict[str, StoredVersion] = {}
    for index, section in enumerate(scenario.profiles):
        if section.name is None:
            continue
        try:
            profile = profile_get(section.name, section.version)
        except NotFound as problem:
            raise ScenarioError(f"profiles[{index}].name: {problem}") from None
        if profile.row is None:
            raise ScenarioError(
                f"profiles[{index}].name: {section.name} is built in. Leave out name and give its "
                "model, gpu and tp."
            )
        profiles[section.name] = StoredVersion(profile.row.version, profile.row.pk)
    return profiles


def _prices(scenario: Scenario) -> StoredPrices | None:
    """Return the price list that the scenario names; raise ScenarioError if there is none."""
    name = scenario.price_list
    if name is None:
        return None
    row = PriceList.objects.filter(name=name).first()
    if row is None:
        names = list(PriceList.objects.values_list("name", flat=True)[:LISTED])
        available = f"there are {', '.join(names)}" if names else "there is none"
        raise ScenarioError(
            f"price_list: there is no price list {name!r}; {available}. Upload it on the page of "
            "prices or with bin/manage prices, or leave it out."
        )
    return StoredPrices(name, tuple(OwnPrice(**price) for price in row.facts["prices"]))


def _kernels(gpus: set[str]) -> dict[str, list[int]]:
    """Return the ids of the uploaded kernel files of each type in ``gpus``, oldest first."""
    file_ids: dict[str, list[int]] = {}
    for row in Calibration.objects.filter(kind=Calibration.Kind.KERNELS).order_by("pk"):
        for gpu in sorted(gpus.intersection(row.report.get("gpus", []))):
            file_ids.setdefault(gpu, []).append(row.pk)
    return file_ids


def _specs(model: type[OwnGpu] | type[OwnModel], names: set[str]) -> dict[str, StoredSpec]:
    """Return the stored facts of the user's GPU types or models with these names."""
    rows = model.objects.filter(name__in=names)
    return {row.name: StoredSpec(row.facts, row.kind, row.source) for row in rows}
