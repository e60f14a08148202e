"""Expected errors of forecasting. Each message is one sentence with a remedy."""


class ForecastError(ValueError):
    """A series cannot be forecast; the message names it and the remedy."""


class SeriesTooShort(ForecastError):
    """A series has fewer observed bins than the method needs."""
