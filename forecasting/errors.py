"""Expected outcomes of forecasting, each one sentence that says what to do."""


class ForecastError(ValueError):
    """The series cannot be forecast as asked; the message names the series and the remedy."""


class SeriesTooShort(ForecastError):
    """Fewer observed bins than the method needs."""
