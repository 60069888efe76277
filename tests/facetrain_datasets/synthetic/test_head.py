from __future__ import annotations

import numpy as np
import pytest

from facetrain_datasets.synthetic import canvas, head
from facetrain_datasets.synthetic.draws import draw
from facetrain_datasets.synthetic.person import Identity, View


@pytest.fixture(params=range(5))
def person(request: pytest.FixtureRequest) -> tuple[Identity, head.Expression]:
    rng = np.random.default_rng(request.param)
    identity = draw(Identity, rng)
    return identity, head.Expression.of(identity, draw(View, rng))


def test_head_is_symmetric_and_the_nose_stands_out(
    person: tuple[Identity, head.Expression],
) -> None:
    identity, face = person
    height = head.heights(identity, face, wider=4.0)
    np.testing.assert_allclose(height, height[:, ::-1], atol=1e-3)
    points = head.five_points(identity, face, height)
    nose, eyes, mouth = points[2], points[:2], points[3:]
    assert nose[2] > eyes[:, 2].max()
    assert nose[2] > mouth[:, 2].max()
    assert eyes[0, 0] < 0 < eyes[1, 0]
    assert eyes[:, 1].max() < nose[1] < mouth[:, 1].min()


def test_normals_are_those_of_a_plane() -> None:
    plane = 0.5 * canvas.X[None, :] - 0.25 * canvas.Y[:, None]
    nx, ny, nz = (component[5:-5, 5:-5] for component in head.normals(plane))
    length = np.sqrt(1 + 0.5**2 + 0.25**2)
    for component, expected in ((nx, -0.5), (ny, 0.25), (nz, 1.0)):
        np.testing.assert_allclose(component, expected / length, atol=1e-5)


def test_outline_runs_from_crown_to_chin(person: tuple[Identity, head.Expression]) -> None:
    identity, face = person
    y, half_width = head.outline(identity, face.jaw_drop)
    assert (np.diff(y) > 0).all()
    assert half_width.min() >= 0
    assert half_width.max() < -canvas.LEFT - 10  # the hair beside it needs the rest
    assert y[-1] == pytest.approx(identity.chin_y + 0.8 * face.jaw_drop)
