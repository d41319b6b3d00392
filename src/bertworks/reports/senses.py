"""Word senses by several models: projected word vectors in, one standalone SVG file out, with a panel per model.

The colour of a point is its sense. Sentences with the same vector are drawn as one disc, divided among their senses and
labelled with their count; other points have the number of their sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bertworks.embeddings.senses import SenseGeometry, WordUse

# Colours that colour-blind readers tell apart on white (after Okabe and Ito).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#444444")
_WIDTH, _MARGIN, _TOP, _PANEL, _LINE = 960, 20, 104, 380, 21
_RADIUS, _GROUP_RADIUS = 8, 26
_GREY = "#666"


@dataclass(frozen=True, slots=True)
class Panel:
    """The name of a model, and its projected word vectors."""

    name: str
    projection: SenseGeometry


def draw_senses(word: str, uses: Sequence[WordUse], panels: Sequence[Panel]) -> str:
    """Return the figure as SVG."""
    senses = list(dict.fromkeys(use.sense for use in uses))
    colors = {sense: _COLORS[index % len(_COLORS)] for index, sense in enumerate(senses)}
    list_top = _TOP + _PANEL + 30
    counts = [sum(use.sense == sense for use in uses) for sense in senses]
    num_lines = sum(counts) + len(senses) if len(senses) != 2 else 1 + max(counts)
    height = list_top + _LINE * num_lines + _MARGIN
    description = f"The word {word} in {len(uses)} sentences, by {' and by '.join(panel.name for panel in panels)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="{escape(description)}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    width = (_WIDTH - _MARGIN * (len(panels) + 1)) / len(panels)
    for index, panel in enumerate(panels):
        parts += _panel(panel, uses, colors, (_MARGIN + index * (width + _MARGIN), width))
    parts += _sentences(word, uses, colors, list_top, side_by_side=len(senses) == 2)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, uses: Sequence[WordUse], colors: dict[str, str], extent: tuple[float, float]) -> Iterator[str]:
    left, width = extent
    middle, projection = left + width / 2, panel.projection
    vectors = "one vector"
    if projection.num_distinct_vectors > 1:
        vectors = f"{projection.num_distinct_vectors} vectors, {projection.explained_variance_ratio:.0%} of variance"
    yield _text(middle, 28, panel.name, 'text-anchor="middle" font-weight="600" font-size="16"')
    lines = (
        f"{len(uses)} sentences, {vectors}",
        f"nearest neighbor has the same sense: {projection.nearest_neighbor_accuracy:.0%}",
        f"mean cosine {projection.within_similarity:.2f} within, {projection.across_similarity:.2f} across senses",
    )
    for index, line in enumerate(lines):
        yield _text(middle, 50 + 19 * index, line, f'text-anchor="middle" fill="{_GREY}" font-size="13"')
    size = f'x="{left:.0f}" y="{_TOP}" width="{width:.0f}" height="{_PANEL}"'
    yield f'<rect {size} rx="8" fill="#f6f7f8" stroke="#d5d9dd"/>'
    for (x, y), indices in _group_points(projection, (middle, width)).items():
        yield from _disc(x, y, [(index, uses[index]) for index in indices], colors)


def _group_points(projection: SenseGeometry, extent: tuple[float, float]) -> dict[tuple[float, float], list[int]]:
    """Return the points of a panel in SVG units, and the indices of the sentences at each."""
    middle, width = extent
    scale = (min(width, _PANEL) / 2 - 2 * _RADIUS) / max(1e-9, float(abs(projection.points).max()))
    groups: dict[tuple[float, float], list[int]] = {}
    for index, (x, y) in enumerate(projection.points.tolist()):
        point = (round(middle + scale * x, 1), round(_TOP + _PANEL / 2 - scale * y, 1))
        groups.setdefault(point, []).append(index)
    return groups


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
    """Yield the sectors of a disc that is divided among colours in proportion."""
    start = 0.0
    for color in dict.fromkeys(colors):
        end = start + 2 * math.pi * colors.count(color) / len(colors)
        first, last = (
            f"{x + radius * math.sin(angle):.1f} {y - radius * math.cos(angle):.1f}" for angle in (start, end)
        )
        large_arc = int(end - start > math.pi)
        yield f'<path d="M{x} {y}L{first}A{radius} {radius} 0 {large_arc} 1 {last}z" fill="{color}"/>'
        start = end


def _sentences(
    word: str, uses: Sequence[WordUse], colors: dict[str, str], top: float, *, side_by_side: bool
) -> Iterator[str]:
    """Yield the sentences grouped by sense; two senses side by side."""
    x, y = float(_MARGIN), top
    for sense, color in colors.items():
        yield _text(x, y, f"{word}: {sense}", f'fill="{color}" font-weight="600"')
        for number, use in enumerate(uses, 1):
            if use.sense == sense:
                y += _LINE
                yield _sentence(x, y, number, use)
        x, y = (_WIDTH / 2 + _MARGIN / 2, top) if side_by_side else (x, y + _LINE)


def _sentence(x: float, y: float, number: int, use: WordUse) -> str:
    before, word, after = use.text[: use.start], use.text[use.start : use.end], use.text[use.end :]
    content = f'{number}. {escape(before)}<tspan font-weight="700">{escape(word)}</tspan>{escape(after)}'
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="13" fill="#222" xml:space="preserve">{content}</text>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
