"""List the horizons of a draft: days and weeks are simulated, months and more are an outlook."""

from dataclasses import dataclass

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class HorizonChoice:
    """A horizon that a draft may have; ``outlook`` is "" for one that a comparison simulates."""

    key: str
    label: str
    words: str
    replayed_s: int  # length of the window that a comparison replays
    outlook: str = ""
    months: int = 0


HORIZONS: dict[str, HorizonChoice] = {
    choice.key: choice
    for choice in (
        HorizonChoice("day", "A day", "what to run tomorrow, replayed", DAY_S),
        HorizonChoice("week", "A week", "hour by hour, replayed", 7 * DAY_S),
        HorizonChoice("month", "A month", "its cost, by a representative week", DAY_S, "month", 1),
        HorizonChoice("quarter", "A quarter", "cost by month", DAY_S, "quarter", 3),
        HorizonChoice("year", "A year", "cost by month, and what to commit to", DAY_S, "year", 12),
    )
}
