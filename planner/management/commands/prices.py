"""``bin/manage prices``: store your own price list, or list those stored."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.errors import CatalogueError
from planner.management.base import Document, HeadroomCommand
from planner.models import PriceList
from planner.services.hardware import MAX_BYTES, price_list_save


class Command(HeadroomCommand):
    help = (
        "Store a price list for price_list of scenarios. Columns: region, gpu, on_demand_usd, "
        "spot_usd, one_year_usd, three_years_usd, provider. Without a file, list price lists."
    )
    examples = ("prices", "prices contract.csv", "prices contract.yml --name contract-2026")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", help="CSV or YAML, USD per GPU and hour")
        parser.add_argument(
            "--name", default="", help="name of the list. Default: the name in the file"
        )

    def answer(self, options: Namespace) -> Document:
        """Store the price list of the file, if one is given; return all price lists."""
        if options.file:
            path = Path(options.file)
            if not path.is_file():
                raise CatalogueError(f"{path}: there is no such file. Give a CSV or YAML file.")
            if path.stat().st_size > MAX_BYTES:
                raise CatalogueError(f"{path.name} is larger than {MAX_BYTES:,} bytes. Split it.")
            price_list_save(
                user=None, data=path.read_bytes(), file_name=path.name, name=options.name
            )
        lists = [
            {"name": row.name, "prices": len(row.facts["prices"]), "source": row.source}
            for row in PriceList.objects.all()
        ]
        return {"price_lists": lists}

    def words(self, answer: Document) -> str:
        """Return a line for each price list."""
        rows = [
            f"{row['name']}: {row['prices']:,} prices from {row['source']}"
            for row in answer["price_lists"]
        ]
        return "\n".join(rows) or "There is no price list. Give a file to keep one."
