"""Where a word lies by several models in, one SVG file out that needs nothing else: a panel a model, and the sentences.

A sense is told by its colour. Sentences that lie at one place are drawn as one disc, divided among their senses, with
their count; all others carry the number of their sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bertworks.embeddings.senses import SenseGeometry, WordUse

# Colours that stay apart also for those who see no red or no green (after Okabe and Ito), on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#444444")
_WIDTH, _MARGIN, _TOP, _PANEL, _LINE = 960, 20, 104, 380, 21
_RADIUS, _GROUP_RADIUS = 8, 26
_GREY = "#666"


@dataclass(frozen=True, slots=True)
class Panel:
    """One model: its name, and where the word lies."""

    name: str
    projection: SenseGeometry


def draw_senses(word: str, uses: Sequence[WordUse], panels: Sequence[Panel]) -> str:
    """Return the picture as SVG."""
    senses = list(dict.fromkeys(use.sense for use in uses))
    inks = {sense: _COLORS[number % len(_COLORS)] for number, sense in enumerate(senses)}
    below = _TOP + _PANEL + 30
    columns = [[number for number, use in enumerate(uses) if use.sense == sense] for sense in senses]
    num_lines = sum(map(len, columns)) + len(senses) if len(senses) != 2 else 1 + max(map(len, columns))
    height = below + _LINE * num_lines + _MARGIN
    spoken = f"The word {word} in {len(uses)} sentences, by {' and by '.join(panel.name for panel in panels)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="{escape(spoken)}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    width = (_WIDTH - _MARGIN * (len(panels) + 1)) / len(panels)
    for number, panel in enumerate(panels):
        parts += _panel(panel, uses, inks, (_MARGIN + number * (width + _MARGIN), width))
    parts += _sentences(word, uses, inks, below, side_by_side=len(senses) == 2)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, uses: Sequence[WordUse], colors: dict[str, str], extent: tuple[float, float]) -> Iterator[str]:
    left, width = extent
    middle, found = left + width / 2, panel.projection
    places = "one vector"
    if found.num_distinct_vectors > 1:
        places = f"{found.num_distinct_vectors} vectors; the plane shows {found.explained_variance_ratio:.0%} of their spread"
    yield _text(middle, 28, panel.name, 'text-anchor="middle" font-weight="600" font-size="16"')
    lines = (
        f"{len(uses)} sentences, {places}",
        f"nearest other sentence of the same sense: {found.nearest_neighbor_accuracy:.0%}",
        f"mean cosine {found.within_similarity:.2f} within a sense, {found.across_similarity:.2f} between senses",
    )
    for number, line in enumerate(lines):
        yield _text(middle, 50 + 19 * number, line, f'text-anchor="middle" fill="{_GREY}" font-size="13"')
    size = f'x="{left:.0f}" y="{_TOP}" width="{width:.0f}" height="{_PANEL}"'
    yield f'<rect {size} rx="8" fill="#f6f7f8" stroke="#d5d9dd"/>'
    for (x, y), numbers in _group_points(found, (middle, width)).items():
        yield from _disc(x, y, [(number, uses[number]) for number in numbers], colors)


def _group_points(projection: SenseGeometry, extent: tuple[float, float]) -> dict[tuple[float, float], list[int]]:
    """Return the places of a panel in units of the picture, and the sentences that lie at each."""
    middle, width = extent
    room = (min(width, _PANEL) / 2 - 2 * _RADIUS) / max(1e-9, float(abs(projection.points).max()))
    places: dict[tuple[float, float], list[int]] = {}
    for number, (x, y) in enumerate(projection.points.tolist()):
        place = (round(middle + room * x, 1), round(_TOP + _PANEL / 2 - room * y, 1))
        places.setdefault(place, []).append(number)
    return places


def _disc(x: float, y: float, uses: Sequence[tuple[int, WordUse]], colors: dict[str, str]) -> Iterator[str]:
    radius = _RADIUS if len(uses) == 1 else _GROUP_RADIUS
    yield "<g>"
    yield f"<title>{escape(chr(10).join(use.text for _, use in uses))}</title>"
    if len({use.sense for _, use in uses}) == 1:
        yield f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colors[uses[0][1].sense]}" stroke="#fff"/>'
    else:
        yield from _slices(x, y, radius, [colors[use.sense] for _, use in uses])
    label = str(uses[0][0] + 1) if len(uses) == 1 else f"all {len(uses)}" if len(uses) > 9 else str(len(uses))
    size = 9 if len(uses) == 1 else 11
    yield _text(x, y + size / 3, label, f'text-anchor="middle" fill="#fff" font-size="{size}" font-weight="600"')
    yield "</g>"


def _slices(x: float, y: float, radius: float, colors: Sequence[str]) -> Iterator[str]:
    """Yield a disc that is divided among colours in proportion."""
    at = 0.0
    for colour in dict.fromkeys(colors):
        end = at + 2 * math.pi * colors.count(colour) / len(colors)
        first, last = (f"{x + radius * math.sin(angle):.1f} {y - radius * math.cos(angle):.1f}" for angle in (at, end))
        large = int(end - at > math.pi)
        yield f'<path d="M{x} {y}L{first}A{radius} {radius} 0 {large} 1 {last}z" fill="{colour}"/>'
        at = end


def _sentences(
    word: str, uses: Sequence[WordUse], colors: dict[str, str], top: float, *, side_by_side: bool
) -> Iterator[str]:
    """Yield the sentences under the names of their senses; of two senses the second stands beside the first."""
    x, y = float(_MARGIN), top
    for sense, ink in colors.items():
        yield _text(x, y, f"{word}: {sense}", f'fill="{ink}" font-weight="600"')
        for number, use in enumerate(uses):
            if use.sense == sense:
                y += _LINE
                yield _sentence(x, y, number + 1, use)
        x, y = (_WIDTH / 2 + _MARGIN / 2, top) if side_by_side else (x, y + _LINE)


def _sentence(x: float, y: float, number: int, use: WordUse) -> str:
    before, word, behind = use.text[: use.start], use.text[use.start : use.end], use.text[use.end :]
    told = f'{number}. {escape(before)}<tspan font-weight="700">{escape(word)}</tspan>{escape(behind)}'
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="13" fill="#222" xml:space="preserve">{told}</text>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
