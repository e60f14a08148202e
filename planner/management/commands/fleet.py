"""``bin/manage fleet``: read what runs today, and write it into a scenario."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.domain.options import options_in
from planner.errors import PlannerError
from planner.files.documents import utf8_text
from planner.inputs.fleet import RunningPool, read_fleet
from planner.inputs.fleet.reading import MAX_CHARACTERS
from planner.inputs.ingest.source import check_regular
from planner.management.base import Document, HeadroomCommand
from planner.management.options import add_options, options_from_command_line
from planner.management.runs import load_scenario
from planner.outputs.table_text import table_lines
from planner.selectors.scenarios import scenario_get
from planner.services.fleet_imports import PoolFacts, fleet_import, with_fleet

COLUMNS = {
    "name": "name", "model": "model", "GPU": "gpu", "tp": "tp", "role": "role",
    "replicas": "replicas", "least": "replicas_min", "most": "replicas_max", "trigger": "trigger",
    "not stated": "needs",
}  # fmt: skip


class Command(HeadroomCommand):
    help = "Read the current deployment from Kubernetes YAML, Helm values or a launch line."
    examples = (
        "fleet deployment.yaml",
        "fleet values.yaml --model llama-3.1-8b --gpu H100-SXM",
        "fleet deployment.yaml --scenario week --region us-east",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", help="files of one deployment; - for stdin")
        parser.add_argument("--scenario", help="scenario to write fleet.today into: name or id")
        parser.add_argument("--out", help="write the scenario to this file instead of storing it")
        add_options(parser, options_in(PoolFacts))

    def answer(self, options: Namespace) -> Document:
        """Return the pools in the files, after writing them into the scenario, if one is named."""
        name = ", ".join(Path(file).name for file in options.files)
        text = "\n---\n".join(_text(file) for file in options.files)
        facts = PoolFacts(**options_from_command_line(PoolFacts, options))
        if not options.scenario:
            stated = RunningPool(model=facts.model, gpu=facts.gpu, tp=facts.tp)
            pools = [pool.filled_from(stated) for pool in read_fleet(text, name)]
            return {"pools": [pool.as_dict() for pool in pools], "scenario": None, "notes": []}
        if options.out:
            written_to = options.out
            document, _ = load_scenario(options.scenario, self.progress)
            imported = with_fleet(document, text, name, facts)
            Path(options.out).write_text(imported.document, encoding="utf-8")
        else:
            scenario, imported = fleet_import(
                scenario=scenario_get(options.scenario),
                user=None,
                text=text,
                name=name,
                facts=facts,
            )
            written_to = scenario.name
        return {
            "pools": [pool.as_dict() for pool in imported.pools],
            "scenario": written_to,
            "notes": list(imported.notes),
        }

    def words(self, answer: Document) -> str:
        """Return a table of the pools, and the notes on them."""
        pools = answer["pools"]
        lines = table_lines([pool | {"needs": ", ".join(pool["needs"])} for pool in pools], COLUMNS)
        for pool in pools:
            lines += [f"{pool['name']}: {note}" for note in pool["notes"]]
        lines += [note for note in answer["notes"] if note not in lines]
        if answer["scenario"]:
            lines.append(f"Written as fleet.today of {answer['scenario']}.")
        return "\n".join(lines)


def _text(file: str) -> str:
    """Return the text of a file, or of stdin."""
    if file == "-":
        return sys.stdin.read(MAX_CHARACTERS + 1)
    check_regular(Path(file))
    return utf8_text(Path(file).read_bytes(), file, "Give YAML or a launch line.", PlannerError)
