"""Define the help of commands: purpose, examples, options by group, defaults."""

import ast
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from textwrap import fill
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from planner.installation import COMMAND, IN_CHECKOUT

START = "bin/run" if IN_CHECKOUT else f"{COMMAND} run"
WIDTH = 79  # characters of a line of help
# Commands by job, in the order of the overview.
JOBS = {
    "Start": ("serve", "quick-size"),
    "Plan": ("ingest", "forecast", "plan", "compare", "simulate", "whatif", "sweep", "outlook",
             "pareto", "backtest"),
    "Explore": ("configure", "estimate", "size", "pd-ratio", "provision", "place", "share"),
    "Ship": ("export", "in-force", "schedule", "diff", "fleet"),
    "Data": ("list", "source", "profiles", "prices", "carbon", "characterise", "aggregate"),
    "Operate": ("user", "workspace", "audit", "backup", "restore", "arrays", "work", "warm_up"),
}  # fmt: skip


class HelpFormatter(RawDescriptionHelpFormatter):
    """Keep the lines of examples, and state the default of every option that has one."""

    def _get_help_string(self, action: Action) -> str:
        """Return the help of an argument, with its default if it has one that the help lacks."""
        help_text = action.help or ""
        states_default = "efault:" in help_text
        has_default = action.default not in (None, False, "", [], "==SUPPRESS==")
        if not action.option_strings or not has_default or states_default:
            return help_text
        value = "%(default)g" if isinstance(action.default, float) else "%(default)s"
        return f"{help_text}. Default: {value}"


class HelpedCommand(BaseCommand):
    """A command whose help has examples, and only the options of this product."""

    examples: ClassVar[tuple[str, ...]]  # command lines without the name of the program
    # System checks import every page and view, which takes longer than many commands.
    requires_system_checks = ()
    suppressed_base_arguments = {
        "--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color",
        "--force-color", "--skip-checks",
    }  # fmt: skip

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return a parser that reports an error in one sentence; only --help prints the usage."""
        parser = super().create_parser(
            prog_name, subcommand, formatter_class=HelpFormatter, **kwargs
        )
        # "serve" is what the start command runs, so its help names that command.
        parser.prog = START if subcommand == "serve" else f"{COMMAND} {subcommand}"
        examples = "".join(f"\n  {_program(line)} {line}".rstrip() for line in self.examples)
        parser.description = f"{fill(self.help, WIDTH)}\n\nexamples:{examples}"
        parser.print_usage = lambda file=None: None  # type: ignore[method-assign]
        self.add_output(parser)
        return parser

    def add_output(self, parser: ArgumentParser) -> None:
        """Add the options on the output, which come after all others."""


def _program(arguments: str) -> str:
    """Return the program that an example calls; one without a command starts the product."""
    return START if arguments.startswith("-") or not arguments else COMMAND


def overview() -> str:
    """Return the help without a command: the commands by job, each with its purpose."""
    lines = ["Plan the capacity of LLM serving fleets.", ""]
    for job, names in JOBS.items():
        lines.append(f"{job}:")
        for name in names:
            # An installed package starts the product with "headroom run".
            shown = "run" if name == "serve" and not IN_CHECKOUT else name
            lines.append(f"  {shown:13} {purpose(name)}")
        lines.append("")
    lines.append(f"`{COMMAND} COMMAND --help` shows the examples and options of a command.")
    return "\n".join(lines)


def purpose(name: str) -> str:
    """Return the first sentence of a command's help, read without importing the command."""
    path = Path(__file__).parent / "commands" / f"{name}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="help")], value=ast.Constant(value=str(text))):
                first_sentence = text.split(". ")[0]
                return first_sentence.rstrip(".")
    return ""
