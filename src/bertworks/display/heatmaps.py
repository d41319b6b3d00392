"""Attention weights in, a grid of heat maps out: a row per layer, a column per head.

L layers, H heads, T tokens.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

_COLOR = (58, 134, 255)
_PIXELS = 96  # of one heat map on the page


def attention_html(tokens: Sequence[str], weights: npt.NDArray[np.float32]) -> str:
    """Return a `<div>` with the heat maps of all heads (L, H, T, T); a map's rows attend to its columns."""
    head = "".join(f"<th>head {index}</th>" for index in range(weights.shape[1]))
    rows = "".join(
        f"<tr><th>layer {layer}</th>{''.join(map(_heatmap, heads))}</tr>" for layer, heads in enumerate(weights)
    )
    note = "In each map a row is a token, from top to bottom, and its columns are the tokens that it attends to."
    return (
        f'<div class="attention"><p>{escape(" ".join(tokens))}</p><p>{note}</p>'
        f"<table><tr><th></th>{head}</tr>{rows}</table></div>"
    )


def _heatmap(weights: npt.NDArray[np.float32]) -> str:
    source = base64.b64encode(png_of(weights)).decode()
    style = f"width: {_PIXELS}px; height: {_PIXELS}px; image-rendering: pixelated; border: 1px solid #8888"
    return f'<td><img alt="" style="{style}" src="data:image/png;base64,{source}"></td>'


def png_of(weights: npt.NDArray[np.float32]) -> bytes:
    """Return weights from 0 to 1, (T, T), as a PNG: one color whose opacity is the weight."""
    height, width = weights.shape
    pixels = np.empty((height, width, 4), dtype=np.uint8)
    pixels[..., :3] = _COLOR
    pixels[..., 3] = np.rint(255 * np.clip(weights, 0, 1))
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits each of red, green, blue and opacity
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
