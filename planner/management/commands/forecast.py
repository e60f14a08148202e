"""``bin/manage forecast``: forecast the demand after a trace, or in the window of a scenario."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.domain.kinds.forecast import Options, TraceOptions
from planner.domain.options import options_in
from planner.errors import PlannerError
from planner.management.base import Document
from planner.management.options import add_options, flag_of, options_from_command_line
from planner.management.runs import ReportCommand, execute, load_trace, run_scenario
from planner.models import Run, Scenario
from planner.services.runs import run_create


class Command(ReportCommand):
    help = "Forecast a demand or trace file, a stored trace, or the window of a scenario."
    examples = (
        "forecast demand.csv",
        "forecast demand.csv --bin 900 --horizon 3600 --backtest",
        "forecast scenario.yml",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("source", help="file, stored trace, or scenario file")
        add_options(parser, options_in(TraceOptions), leave_out=("origins",))
        parser.add_argument(
            "--backtest", action="store_true", help="rolling-origin backtest errors"
        )
        parser.add_argument(
            "--origins", type=int, default=24, help="number of origins of the backtest"
        )

    def answer(self, options: Namespace) -> Document:
        """Return the forecast of a scenario, or of the trace in a file or of that name."""
        source = options.source
        if options.origins < 1:
            raise PlannerError(f"--origins {options.origins}: give 1 or more.")
        is_file = Path(source).suffix in (".yml", ".yaml")
        if is_file or Scenario.objects.filter(name=source).exists():
            return self._forecast_scenario(source, options)
        # The option of a run is the number of origins, and None without a backtest.
        origins = options.origins if options.backtest else None
        given = Namespace(**{**vars(options), "origins": origins})
        run = run_create(
            owner=None,
            kind=Run.Kind.FORECAST,
            trace=load_trace(source, self.progress),
            options=options_from_command_line(TraceOptions, given),
            enqueue=False,
        )
        return execute(run, self.progress)

    def _forecast_scenario(self, source: str, options: Namespace) -> Document:
        """Return the forecast of a scenario; raise PlannerError for options of a trace."""
        for name in ("bin_s", "horizon_s", "backtest"):
            if getattr(options, name):
                raise PlannerError(
                    f"{flag_of(name)} is only for a trace. A scenario has traffic.bin_s and "
                    "horizon."
                )
        run_options = options_from_command_line(Options, options)
        return run_scenario(Run.Kind.FORECAST, source, run_options, self.progress)
