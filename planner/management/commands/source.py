"""``bin/manage source``: create, preview, read and list live sources of demand."""

import json
from argparse import ArgumentParser, Namespace
from datetime import datetime

from django.utils.dateparse import parse_datetime

from planner.domain.serialise import as_json
from planner.errors import SourceError
from planner.management.base import Document, HeadroomCommand
from planner.management.options import name_and_value
from planner.models import Source
from planner.outputs.table_text import table_lines
from planner.selectors.traces import source_gaps, source_get, sources_list
from planner.services.source_reading import source_preview, source_read
from planner.services.sources import current_trace, source_change, source_create, source_delete

VERBS = ("add", "preview", "read", "list", "pause", "resume", "remove", "trace")
COLUMNS = {"source": "name", "kind": "kind", "state": "state", "read to": "read_to", "gaps": "gaps"}


class Command(HeadroomCommand):
    help = (
        "Read live demand from Prometheus, a folder or a bucket. Or list, pause and remove such "
        "sources. `trace NAME --until MOMENT` keeps the data of that time as a trace."
    )
    examples = (
        "source list",
        "source preview --url http://prometheus:9090",
        "source add prod --url http://prometheus:9090 --set region=us-east",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("verb", choices=VERBS, help="what to do")
        parser.add_argument("name", nargs="?", default="", help="name of the source")
        what = parser.add_argument_group("what to read")
        what.add_argument(
            "--kind",
            choices=Source.Kind.values,
            help="kind of source. Default: by the other options",
        )
        what.add_argument(
            "--url", help="address of Prometheus or an S3 server, listed in HEADROOM_SOURCES"
        )
        what.add_argument("--bucket", help="bucket of the files")
        what.add_argument("--path", help="folder, in one of HEADROOM_SOURCE_FOLDERS")
        what.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE",
            help="a setting, such as region=us-east, or match.namespace=prod",
        )  # fmt: skip
        when = parser.add_argument_group("when to read")
        when.add_argument("--bin", type=int, default=300, help="width of bins in seconds")
        when.add_argument("--every", type=int, help="seconds between readings")
        when.add_argument("--until", help="time, such as 2026-05-04T06:00Z")

    def answer(self, options: Namespace) -> Document:
        """Carry out the verb, and return the source, the sources, a preview or a trace."""
        verb, name = options.verb, options.name
        if verb == "list":
            return {"sources": [_source_line(source) for source in sources_list()]}
        kind, settings = _kind_and_settings(options)
        if verb == "preview":
            preview: Document = as_json(source_preview(user=None, kind=kind, fields=settings))
            return preview
        if not name:
            raise SourceError(f"source {verb}: name a source.")
        if verb == "add":
            source = source_create(
                owner=None, name=name, kind=kind, settings=settings, bin_s=options.bin,
                every_s=options.every,
            )  # fmt: skip
            return _source_line(source)
        source = source_get(name)
        if verb == "trace":
            trace = current_trace(source, _moment(options.until))
            return {"trace": trace.name, "requests": trace.requests}
        if verb == "remove":
            source_delete(source=source, user=None)
            return {"source": name, "removed": True}
        if verb == "read":
            was_read = source_read(source_id=source.pk, raise_errors=True, only_due=False)
            if was_read is None:
                raise SourceError(
                    f"source read: {name} cannot be read now. It is paused, receives "
                    "samples, or another read runs."
                )
            return _source_line(source_get(name))
        changes = {"paused": verb == "pause"}  # else it resumes
        return _source_line(source_change(source=source, user=None, changes=changes))

    def words(self, answer: Document) -> str:
        """Return the sources as a table, and any other answer as JSON."""
        if "sources" not in answer:
            return json.dumps(answer, indent=2)
        if not answer["sources"]:
            return "There is no live source yet."
        return "\n".join(table_lines(answer["sources"], COLUMNS))


def _kind_and_settings(options: Namespace) -> tuple[str, Document]:
    """Return (kind, settings) of a source from the options.

    Without --kind, the kind follows from the location: --bucket, --url or --path.
    """
    settings: Document = {}
    for pair in options.set:
        key, value = name_and_value("--set", pair, "KEY=VALUE, such as region=us-east")
        # A dot sets one entry of a nested setting: match.namespace=prod.
        outer, _, inner = key.partition(".")
        if inner:
            settings.setdefault(outer, {})[inner] = value
        else:
            settings[key] = value
    for name in ("url", "path", "bucket"):
        if getattr(options, name):
            settings[name] = getattr(options, name)
    if options.kind:
        return options.kind, settings
    if options.bucket:
        return "bucket", settings
    if options.url:
        return "prometheus", settings
    if options.path:
        return "folder", settings
    return "samples", settings


def _moment(text: str | None) -> datetime | None:
    """Return the time of --until, None if ``text`` is None; raise SourceError without a zone."""
    if text is None:
        return None
    moment = parse_datetime(text)
    if moment is None or moment.tzinfo is None:
        raise SourceError(f"--until {text}: write a moment with its zone, as 2026-05-04T06:00Z.")
    return moment


def _source_line(source: Source) -> Document:
    """Return a source as JSON data: its state, how far it was read, and its gaps."""
    gaps = source_gaps(source)
    return {
        "name": source.name,
        "kind": source.kind,
        "state": "paused" if source.paused else source.state,
        "problem": source.problem,
        "read_at": source.read_at.isoformat() if source.read_at else None,
        "read_to": gaps.last.isoformat() if gaps.last else None,
        "bin_s": source.bin_s,
        "bins": gaps.bins,
        "gaps": gaps.missing,
        "trace": source.trace.name if source.trace else None,
    }
