"""``bin/manage carbon``: print carbon by hour of the day, from a CSV or a grid's known cycle."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import fmean

from planner.errors import CatalogueError
from planner.files.documents import utf8_text
from planner.inputs.catalogue import grid
from planner.inputs.catalogue.carbon import MOST_G_PER_KWH, carbon_by_hour, hourly_of_csv
from planner.management.base import Document, HeadroomCommand

LARGEST_BYTES = 20_000_000  # years of five-minute values


class Command(HeadroomCommand):
    help = "Print 24 values by UTC hour for carbon_g_per_kwh of a region."
    examples = ("carbon DE", "carbon us-east-1 --mean 300", "carbon carbon.csv")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "source", help="CSV of times and g CO2e per kWh, or a country or cloud region"
        )
        parser.add_argument("--mean", type=float, help="yearly mean. Default: the published one")

    def answer(self, options: Namespace) -> Document:
        """Return the g CO2e per kWh by UTC hour of the day, and their mean."""
        path = Path(options.source)
        if path.is_file():
            if path.stat().st_size > LARGEST_BYTES:
                raise CatalogueError(f"{path.name} is larger than {LARGEST_BYTES:,} bytes.")
            text = utf8_text(path.read_bytes(), path.name, "Give CSV.", CatalogueError)
            hourly = hourly_of_csv(text, path.name)
        elif path.suffix:
            raise CatalogueError(f"{path}: there is no such file. Give a CSV, or a country code.")
        elif options.mean is not None and not 0 <= options.mean <= MOST_G_PER_KWH:
            raise CatalogueError(f"--mean must be 0 to {MOST_G_PER_KWH:,} g CO2e per kWh.")
        else:
            source = grid(options.source)
            mean = source.carbon_g_per_kwh if options.mean is None else options.mean
            hourly = carbon_by_hour(source.cycle or source.name, mean)
        rounded = [round(g_per_kwh, 1) for g_per_kwh in hourly]
        return {"carbon_g_per_kwh": rounded, "mean": fmean(rounded)}

    def words(self, answer: Document) -> str:
        values = ", ".join(f"{value:g}" for value in answer["carbon_g_per_kwh"])
        return f"carbon_g_per_kwh: [{values}]  # by UTC hour, mean {answer['mean']:.0f}"
