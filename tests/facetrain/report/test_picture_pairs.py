from __future__ import annotations

import numpy as np

from facetrain.report import Picture, PicturePairs


def test_pairs_stand_side_by_side_with_escaped_captions() -> None:
    pictures = [Picture(np.full((8, 8, 3), value, np.uint8), "<a>") for value in (0, 255)]
    html = PicturePairs([(pictures[0], pictures[1])], ["1: <b> & c"]).to_html()
    assert html.count("<img") == 2
    assert "1: &lt;b&gt; &amp; c" in html
    assert "<a>" not in html
