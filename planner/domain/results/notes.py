"""Write the notes that prevent misreading of a policy's figures."""

from __future__ import annotations

from planner.domain.study import PolicyRun
from simulation.policies.wrappers.signal_range import SignalRange


def note_of(run: PolicyRun) -> str:
    """Return a sentence on a signal that never triggered scaling; empty if it did."""
    swing = run.swing
    if swing is None or (swing.asked_more and (swing.asked_fewer or swing.low <= swing.out_above)):
        return ""
    stayed = (
        f"Its signal, {swing.words}, stayed at {_signal_text(swing, swing.low)}"
        if _signal_text(swing, swing.low) == _signal_text(swing, swing.high)
        else f"Its signal, {swing.words}, stayed between {_signal_text(swing, swing.low)} and "
        f"{_signal_text(swing, swing.high)}"
    )
    above, below = _signal_text(swing, swing.out_above), _signal_text(swing, swing.in_below)
    if swing.asked_more:
        return f"{stayed}, above {above} all the time: it only ever asked for more."
    if swing.asked_fewer:
        return f"{stayed} and never passed {above}: it never asked for more."
    if swing.share and swing.out_above >= 1:
        return (
            f"{stayed}, and no share passes {above}, where it would ask for more: it did not scale."
        )
    return f"{stayed}, never above {above} nor below {below}: it did not scale."


def _signal_text(swing: SignalRange, value: float) -> str:
    if swing.share:
        return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
