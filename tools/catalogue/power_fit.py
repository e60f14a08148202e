"""Fit ``simulation.performance.power`` to measured shares of TDP by least squares."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.performance.power import Load, PowerModel, share_of_tdp
from tools.catalogue.power_rows import TASKS, TEXT_TOKENS, PowerRows

OWN = ("floor", "memory", "cache", "compute", "link")  # per GPU type; the others are shared
SHARED = (
    "memory_exponent", "compute_exponent", "prefill", "prefill_efficiency", "experts",
    "block_experts", "attention_dp", "imbalance", "gap", "expert_bytes",
)  # fmt: skip
NUISANCE = ("sourcegraph-fim", "image-chat", "video-chat")  # ln of their input tokens

# Prior mean, standard deviation and bounds of each parameter. The pull to the mean is weak: PULL of
# a standard deviation per residual.
PRIOR = {
    "floor": (0.25, 0.08, 0.1, 0.5),
    "memory": (0.6, 0.3, 0.0, 3.0),
    "cache": (0.6, 0.3, 0.0, 3.0),
    "compute": (0.95, 0.5, 0.0, 5.0),
    "memory_exponent": (0.6, 0.2, 0.3, 1.2),
    "compute_exponent": (0.7, 0.2, 0.3, 1.2),
    "prefill": (0.85, 0.1, 0.4, 1.0),
    "prefill_efficiency": (0.45, 0.15, 0.15, 1.0),
    "experts": (0.0, 0.05, -0.2, 0.3),
    "block_experts": (0.15, 0.15, 0.0, 0.5),
    "attention_dp": (0.2, 0.2, 0.0, 0.8),
    "imbalance": (0.1, 0.15, 0.0, 0.6),
    "gap": (0.0, 0.2, 0.0, 0.4),
    "link": (0.03, 0.05, 0.0, 0.2),
    "expert_bytes": (1.0, 0.2, 0.5, 1.5),
    "sourcegraph-fim": (np.log(2300.0), 0.5, np.log(300.0), np.log(8000.0)),
    "image-chat": (np.log(700.0), 0.5, np.log(100.0), np.log(8000.0)),
    "video-chat": (np.log(2000.0), 0.5, np.log(100.0), np.log(8000.0)),
}
PULL = 0.3
OUTLIER = 0.1  # relative error from which a row counts less


@dataclass(frozen=True, slots=True)
class PowerFit:
    """Fitted power models, and what else was fitted with them."""

    models: dict[str, PowerModel]  # by GPU type
    values: FloatArray  # parameters as a vector, the start of a similar fit
    input_tokens: FloatArray  # by task

    @property
    def default(self) -> PowerModel:
        """Return the model of a GPU type without rows: the mean of the fitted types."""
        models = list(self.models.values())
        mean = [float(np.mean([getattr(m, name) for m in models])) for name in OWN]
        return replace(models[0], **dict(zip(OWN, mean, strict=True)))

    def predict(self, rows: PowerRows, planned: bool = False) -> FloatArray:
        """Return the share of TDP of each row; ``planned``: with the times of rooflines."""
        return predict_power(self.models, self.input_tokens, rows, planned)


def predict_power(
    models: dict[str, PowerModel],
    input_tokens: FloatArray,
    rows: PowerRows,
    planned: bool = False,
) -> FloatArray:
    """Return the power of each row as a share of TDP, by the model of its GPU type.

    ``input_tokens`` are by task. With ``planned``, iteration times are those of rooflines.
    """
    loads = rows.at(input_tokens, planned)
    share = np.empty(len(rows.share))
    for gpu, model in models.items():
        members = rows.gpu == gpu
        share[members] = share_of_tdp(model, take(loads, members))
    return share


def take(load: Load, rows: BoolArray) -> Load:
    """Return the loads of the rows of the mask."""
    return Load(**{name: getattr(load, name)[rows] for name in Load.__slots__})


def fit(rows: PowerRows, used: BoolArray, begin: FloatArray | None = None) -> PowerFit:
    """Fit the parameters to the rows that are ``used``; omit GPU types without a row.

    ``begin`` are the values of a similar fit, from which the search starts; default: the priors.
    """
    gpus = sorted(set(rows.gpu[used].tolist()))
    names = [*(name for _ in gpus for name in OWN), *SHARED, *NUISANCE]
    prior, spread, low, high = np.array([PRIOR[name] for name in names]).T

    def unpack(values: FloatArray) -> tuple[dict[str, PowerModel], FloatArray]:
        """Return models by GPU type, and input tokens by task, of a vector ordered as ``names``."""
        own_values = values[: len(gpus) * len(OWN)].reshape(len(gpus), len(OWN))
        rest = values[len(gpus) * len(OWN) :]
        shared = dict(zip(SHARED, rest.tolist(), strict=False))
        models = {
            gpu: PowerModel(**dict(zip(OWN, gpu_values.tolist(), strict=True)), **shared)
            for gpu, gpu_values in zip(gpus, own_values, strict=True)
        }
        tokens = np.array([TEXT_TOKENS.get(name, 0.0) for name in TASKS])
        tokens[[TASKS.index(name) for name in NUISANCE]] = np.exp(rest[len(SHARED) :])
        return models, tokens

    def residuals(values: FloatArray) -> FloatArray:
        share = predict_power(*unpack(values), rows)[used]
        return np.concatenate([np.log(share / rows.share[used]), PULL * (values - prior) / spread])

    start = prior if begin is None or len(begin) != len(prior) else begin
    best = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, max_nfev=40
    ).x
    models, tokens = unpack(best)
    return PowerFit(models, best, tokens)


def from_decodes(default: PowerModel, loads: Load, share: FloatArray) -> PowerModel:
    """Return ``default`` with its own floor and memory slope, fitted to few decode batches.

    Such decodes do not determine the other parameters.
    """
    prior = np.array([default.floor, default.memory])

    def model(values: FloatArray) -> PowerModel:
        return replace(default, floor=float(values[0]), memory=float(values[1]))

    def residuals(values: FloatArray) -> FloatArray:
        pull = PULL * (values - prior) / np.array([PRIOR["floor"][1], PRIOR["memory"][1]])
        return np.concatenate([np.log(share_of_tdp(model(values), loads) / share), pull])

    bounds = ([0.1, 0.0], [0.5, 3.0])
    return model(least_squares(residuals, prior, bounds=bounds, loss="soft_l1", f_scale=OUTLIER).x)


def decodes_left_out(
    default: PowerModel, groups: TextArray, loads: Load, share: FloatArray
) -> FloatArray:
    """Predict every group of decodes by ``from_decodes`` of all others."""
    estimates = np.empty_like(share)
    for group in np.unique(groups):
        others = groups != group
        model = from_decodes(default, take(loads, others), share[others])
        estimates[~others] = share_of_tdp(model, take(loads, ~others))
    return estimates


def predict_left_out_groups(
    rows: PowerRows, groups: TextArray, planned: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Predict the share of TDP of every group from a fit to all other groups.

    The second array has the predictions with roofline times. It is NaN unless ``planned``.
    """
    begin = fit(rows, np.ones(len(groups), bool)).values
    estimates, with_rooflines = np.empty(len(groups)), np.full(len(groups), np.nan)
    for group in np.unique(groups):
        members = groups == group
        others_fit = fit(rows, ~members, begin)
        estimates[members] = others_fit.predict(rows)[members]
        if planned:
            with_rooflines[members] = others_fit.predict(rows, planned=True)[members]
    return estimates, with_rooflines
