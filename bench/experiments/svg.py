"""Plots as SVG text, without a plotting library: lines over time, and bars side by side."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 40, 44
# Told apart by most eyes, also on paper (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def lines(
    title: str,
    x_words: str,
    y_words: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
) -> str:
    """Return a chart with each series as a step line over ``x``; NaN leaves a gap."""
    top = max((float(np.nanmax(y)) for y in series.values() if len(y)), default=1.0) or 1.0
    scale_x, scale_y = _scales(float(min(x)), float(max(x)), top)
    parts = _frame(title, x_words, y_words, top)
    for value in np.linspace(min(x), max(x), 7):
        parts.append(_text(scale_x(value), HEIGHT - BOTTOM + 16, f"{value:.3g}", "middle"))
    for i, values in enumerate(series.values()):
        points, begun = [], False
        for place, value in zip(x, values, strict=True):
            if np.isnan(value):
                begun = False
                continue
            points.append(f"{'L' if begun else 'M'}{scale_x(place):.1f},{scale_y(value):.1f}")
            begun = True
        colour = COLOURS[i % len(COLOURS)]
        parts.append(
            f'<path d="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    return _document(parts, list(series))


def bars(
    title: str, y_words: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]
) -> str:
    """Return a chart with a bar per group and series; None leaves its place empty."""
    known = [value for values in series.values() for value in values if value is not None]
    top = max(known, default=1.0) or 1.0
    _, scale_y = _scales(0, 1, top)
    parts = _frame(title, "", y_words, top)
    slot = (WIDTH - LEFT - RIGHT) / len(groups)
    each = 0.8 * slot / len(series)
    for g, group in enumerate(groups):
        parts.append(_text(LEFT + (g + 0.5) * slot, HEIGHT - BOTTOM + 16, group, "middle"))
        for i, values in enumerate(series.values()):
            value = values[g]
            if value is None:
                continue
            x, y = LEFT + g * slot + 0.1 * slot + i * each, scale_y(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{each * 0.92:.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{COLOURS[i % len(COLOURS)]}"/>'
            )
            parts.append(_text(x + each / 2, y - 4, f"{value:.3g}", "middle", 10))
    return _document(parts, list(series))


def _scales(low: float, high: float, top: float):  # type: ignore[no-untyped-def]
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + wide * (value - low) / ((high - low) or 1.0)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - tall * value / (top * 1.08)

    return x, y


def _frame(title: str, x_words: str, y_words: str, top: float) -> list[str]:
    _, y = _scales(0, 1, top)
    parts = [_text(LEFT, 18, title, "start", 14)]
    for value in np.linspace(0, top, 5):
        row = y(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{row:.1f}" y2="{row:.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(LEFT - 6, row + 4, f"{value:.3g}", "end"))
    parts.append(_text((WIDTH + LEFT) / 2, HEIGHT - 8, x_words, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{middle:.0f}" transform="rotate(-90 14 {middle:.0f})" '
        f'text-anchor="middle" font-size="12">{escape(y_words)}</text>'
    )
    return parts


def _document(parts: list[str], names: Sequence[str]) -> str:
    x = float(LEFT)
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<rect x="{x:.0f}" y="26" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, 35, name, "start", 11))
        x += 26 + 6.4 * len(name)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" fill="#222" role="img">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
