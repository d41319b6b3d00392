"""Heat maps of attention weights: the pixels of a PNG, and one map per layer and head."""

import struct
import zlib

import numpy as np

from bertworks.display.heatmaps import attention_html, png_of


def test_the_opacity_of_a_pixel_is_its_weight():
    png = png_of(np.array([[0.0, 1.0, 0.5]], dtype=np.float32))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (3, 1)
    length = struct.unpack(">I", png[33:37])[0]
    line = zlib.decompress(png[41 : 41 + length])
    assert list(line) == [0, 58, 134, 255, 0, 58, 134, 255, 255, 58, 134, 255, 128]


def test_every_head_has_a_map_and_tokens_are_escaped():
    html = attention_html(["<s>", "cat"], np.full((2, 3, 2, 2), 0.5, dtype=np.float32))
    assert html.count("<img") == 6
    assert "<p>&lt;s&gt; cat</p>" in html
    assert "layer 1" in html
    assert "head 2" in html
