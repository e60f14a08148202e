"""bin/manage simulate: one policy replayed request by request."""

from __future__ import annotations

import json
import shutil
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from planner import storage
from planner.exports.policies import policy_words
from planner.management.base import RunCommand
from planner.models import Run
from planner.policies.choice import known_policy
from planner.policies.own import policy_names

OUT_NAMES = {"replicas.parquet": "series.parquet"}


class Command(RunCommand):
    help = "Replay one policy on a scenario's requests."
    kind = Run.Kind.SIMULATE

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--policy",
            required=True,
            type=policy_key,
            help=f"one of {', '.join(policy_names())}, or name:label of the scenario's",
        )
        parser.add_argument("--seed", type=int, help="left out: the scenario's")
        parser.add_argument(
            "--out",
            type=Path,
            help="folder for result.json and the tables as Parquet, one of all requests among them",
        )

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {
            "policy": options["policy"],
            "seed": options["seed"],
            "requests": True if options["out"] else None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        answer = super().answer(options)
        if options["out"]:
            options["out"].mkdir(parents=True, exist_ok=True)
            store = Run.objects.values_list("store", flat=True).get(pk=answer["run"])
            for table in storage.folder(store).glob("*.parquet"):
                shutil.copy(table, options["out"] / OUT_NAMES.get(table.name, table.name))
            (options["out"] / "result.json").write_text(json.dumps(answer, indent=2) + "\n")
        return answer

    def words(self, answer: dict[str, Any]) -> str:
        return "\n".join(policy_words(answer, answer["ranking"]))


def policy_key(given: str) -> str:
    if not known_policy(given):
        raise ArgumentTypeError(
            f"there is no policy {given!r}; choose from {', '.join(policy_names())}."
        )
    return given
