"""Offer declared options as arguments of a command, and read them from the command line."""

import argparse
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from planner.domain.options import Option, RunOptions, options_in, options_of
from planner.errors import OptionsRefused, PlannerError

Settings = dict[str, Any]  # arguments of ``add_argument``, or values of options by name


def flag_of(name: str) -> str:
    """Return the flag of an option, such as ``--time-limit`` for ``time_limit_s``."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def moment(text: str) -> datetime:
    """Return a date or time of the command line, in UTC if it has no offset."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text}: write a date or time such as 2024-05-18 or 2024-05-18T14:00."
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def name_and_value(flag: str, text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Return (name, value) of the text NAME=VALUE of an option.

    Raises PlannerError without a name or "=". The message says to write ``form`` behind ``flag``.
    """
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise PlannerError(f"{flag} {text}: write {form}.")
    return name.strip(), value


def name_and_setting(flag: str, text: str, form: str) -> tuple[str, Any]:
    """Return (name, value) of a text NAME=VALUE with one value in YAML, such as spare=2.

    Raises PlannerError otherwise. ``flag`` and ``form`` are those of ``name_and_value``.
    """
    # Most commands read no scenario, and start faster without its schema.
    from planner.inputs.scenario.document import values_of

    name, value = name_and_value(flag, text, form)
    values = values_of(value, f"{flag} {name}")
    if len(values) != 1:
        raise PlannerError(f"{flag} {text}: write {form}.")
    return name, values[0]


def add_options(
    parser: ArgumentParser,
    options: Mapping[str, Option],
    *,
    checked: bool = True,
    leave_out: tuple[str, ...] = (),
    alone: Mapping[str, str] | None = None,
    groups: Mapping[str, tuple[str, ...]] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> None:
    """Add an argument for each option, except those of ``leave_out``.

    Without ``checked``, any value is accepted and no option is required: the command checks that.
    ``alone`` has, by option, the value that a flag without a value stands for. ``groups`` has the
    options of each group of the help, by title. ``aliases`` has a second flag by option.
    """
    group_of_option: dict[str, argparse._ArgumentGroup] = {}
    for title, names in (groups or {}).items():
        group = parser.add_argument_group(title)
        for name in names:
            group_of_option[name] = group
    for name, option in options.items():
        if name in leave_out:
            continue
        settings = _settings(name, option, checked=checked)
        if alone and name in alone:
            settings |= {"nargs": "?", "const": alone[name]}
        flags = [flag_of(name)]
        if aliases and name in aliases:
            flags.append(aliases[name])
        group_of_option.get(name, parser).add_argument(*flags, **settings)


def _settings(name: str, option: Option, *, checked: bool) -> Settings:
    """Return the arguments of ``add_argument`` for an option; see ``add_options``."""
    # argparse formats help texts with %, so double it.
    settings: Settings = {"dest": name, "help": option.help.replace("%", "%%")}
    if option.type == "boolean":
        # No value is given, so that the default of the option applies.
        return settings | {"action": "store_true", "default": None}
    settings["required"] = option.required and checked
    if option.choices and not option.many and checked:
        settings["choices"] = option.choices
    else:
        settings["metavar"] = name.upper()
    return settings


def options_from_command_line(declared: type[RunOptions], given: Namespace) -> Settings:
    """Return the options that are given on the command line, validated as ``declared`` options.

    Items of a list are separated by commas, or by colons if the list has a fixed length. Raises
    OptionsRefused, which names the flags.
    """
    values = {}
    for name, option in options_in(declared).items():
        value = getattr(given, name, None)
        if value is None:
            continue
        if option.many:
            separator = ":" if option.fewest == option.largest else ","
            value = [item.strip() for item in value.split(separator) if item.strip()]
        is_empty_list = value == []  # counts as an option that was not given
        if not is_empty_list:
            values[name] = value
    try:
        return options_of(declared, values).explicit_values()
    except OptionsRefused as refused:
        faults = []
        for fault in refused.faults:
            as_typed = getattr(given, fault.name, None) or fault.value
            faults.append(fault._replace(value=str(as_typed)))
        raise OptionsRefused.of(faults, flag_of) from None
