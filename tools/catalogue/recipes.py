"""Look up what InferenceX's recipes of disaggregated runs state, and the rows of the runs omit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

RECIPES = Path(__file__).with_name("recipes.csv")
RUN = ("gpu", "engine", "precision", "isl", "osl", "concurrency")
SIDES = ("prefill_", "decode_")
Recipe = dict[str, Any]


def read_recipes() -> dict[tuple[Any, ...], list[Recipe]]:
    """Return the recipes by the RUN that they describe."""
    frame = pl.read_csv(RECIPES, comment_prefix="#", schema_overrides={"concurrency": pl.String})
    frame = frame.with_columns(pl.col("concurrency").str.split(" ")).explode("concurrency")
    recipes: dict[tuple[Any, ...], list[Recipe]] = {}
    for row in frame.with_columns(pl.col("concurrency").cast(pl.Int64)).iter_rows(named=True):
        recipes.setdefault(tuple(row[name] for name in RUN), []).append(row)
    return recipes


def facts_of(found: Sequence[Recipe], row: Mapping[str, Any], label: str | None) -> Recipe:
    """Return the facts that are equal in all recipes in ``found`` that may describe the row.

    ``label`` states whether the run drafts tokens; None: unknown. The row's decode ``tp`` may count
    the GPUs of one worker or of the whole deployment.
    """
    version, tp = row["backend_version"], row["decode_tp_size"]
    kept = [recipe for recipe in found if label in (None, recipe["speculative"])]
    # Each sign is used only if a recipe agrees with it, the most telling first.
    signs: tuple[Callable[[Recipe], bool], ...] = (
        lambda recipe: recipe["version"] == version,
        lambda recipe: recipe["decode_workers"] == row["decode_num_workers"],
        lambda recipe: tp in (recipe["decode_tp"], _gpus(recipe)),
        lambda recipe: recipe["decode_ep"] == row["decode_moe_ep_size"],
        lambda recipe: recipe["prefill_ep"] == row["prefill_moe_ep_size"],
    )
    for agrees in signs:
        kept = [recipe for recipe in kept if agrees(recipe)] or kept
    if not kept:
        return {}
    return {name: kept[0][name] for name in kept[0] if len({each[name] for each in kept}) == 1}


def traits_of_recipe(facts: Recipe) -> dict[str, float]:
    """Return workers, arrangement and largest batch of a run, named as in rows of deployments.

    It is empty if the recipes of a run differ in the workers or the arrangement.
    """
    batch = facts.get("max_num_seqs")
    traits: dict[str, float] = {"max_num_seqs": batch} if batch else {}
    for side in SIDES:
        names = [side + name for name in ("tp", "ep", "dp", "workers")]
        if any(name not in facts for name in names):
            return {}
        tp, ep, attention_dp, workers = (facts[name] for name in names)
        traits |= arrangement(side, tp, ep, bool(attention_dp)) | {f"{side}workers": workers}
    return traits


def arrangement(side: str, gpus: int, ep: int, attention_dp: bool) -> dict[str, int]:
    """Return the columns of a worker's parallelism; ``side`` is the prefix of their names.

    With ``attention_dp`` each of the worker's ``gpus`` computes the attention of its own requests.
    """
    tp, dp = (1, gpus) if attention_dp else (gpus, 1)
    split = {"tp": tp, "attention_dp": dp, "moe_ep": ep, "moe_tp": max(gpus // ep, 1)}
    return {side + name: value for name, value in split.items()}


def _gpus(recipe: Recipe) -> int:
    """Return the GPUs of all prefill and decode workers."""
    return sum(int(recipe[f"{side}workers"] * recipe[f"{side}tp"]) for side in SIDES)
