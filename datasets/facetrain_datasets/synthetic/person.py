"""What makes an identity, and what changes from one photo to the next.

Lengths are in units of the aligned 112x112 crop (one unit is one of its pixels), measured from the
nose base of the mean face: x to the right of the picture, y down, z towards the camera. The means
follow the five-point template of the crop and the proportions of adult faces; the spans are wide,
so that geometry tells identities apart where light and colour cast hide the colours.
"""

from __future__ import annotations

from dataclasses import dataclass

from facetrain_datasets.synthetic.draws import span


@dataclass(frozen=True)
class Identity:
    """One person. Shares and strengths are 0 .. 1 unless their span says otherwise."""

    # Head: half widths at forehead, cheek bones and jaw, chin, curvature.
    forehead: float = span(33.0, 41.0)
    cheek: float = span(35.0, 44.0)
    jaw: float = span(0.66, 0.97)  # of the cheek width
    chin_width: float = span(8.0, 20.0)
    chin_y: float = span(37.0, 49.0)
    chin_bump: float = span(1.0, 6.0)
    depth: float = span(24.0, 35.0)
    cheekbone: float = span(0.5, 6.0)
    cheekbone_y: float = span(-8.0, 2.0)

    eye_x: float = span(15.4, 20.0)
    eye_y: float = span(-22.5, -17.5)
    eye_width: float = span(5.0, 9.2)
    eye_open: float = span(2.5, 4.9)
    eye_tilt: float = span(-0.3, 0.3)
    eye_depth: float = span(1.5, 6.0)
    lid_crease: float = span(0.0, 3.2)
    bags: float = span(0.0, 1.0)
    iris: float = span(0.0, 1.0)  # dark brown .. blue grey

    brow_gap: float = span(5.5, 12.0)
    brow_length: float = span(7.5, 12.5)
    brow_thickness: float = span(0.8, 4.2)
    brow_arch: float = span(-0.5, 4.2)
    brow_tilt: float = span(-0.28, 0.28)
    brow_taper: float = span(0.1, 0.9)
    brow_ridge: float = span(0.0, 5.0)
    brow_darkness: float = span(0.45, 0.95)

    nose_y: float = span(-3.0, 5.0)
    nose_width: float = span(4.4, 10.5)
    nose_tip: float = span(6.0, 13.0)
    nose_tip_width: float = span(3.6, 7.0)
    nose_bridge: float = span(1.0, 8.0)
    nose_bridge_width: float = span(2.6, 5.5)
    nostril: float = span(0.9, 2.4)

    mouth_y: float = span(17.0, 25.0)
    mouth_width: float = span(9.0, 19.0)
    upper_lip: float = span(0.6, 4.8)
    lower_lip: float = span(1.4, 6.0)
    cupid_bow: float = span(0.0, 1.8)
    mouth_corner: float = span(-2.0, 1.8)
    lip_tint: float = span(0.0, 1.0)

    melanin: float = span(0.1, 0.85)
    redness: float = span(0.0, 1.0)
    freckles: float = span(-1.0, 1.0)  # none below 0.3
    num_moles: float = span(0.0, 8.0)
    wrinkles: float = span(-0.6, 1.0)  # none below 0
    folds: float = span(0.0, 1.0)
    stubble: float = span(-1.0, 1.0)  # none below 0
    moustache: float = span(-2.0, 1.0)
    beard: float = span(-2.0, 1.0)

    hair_darkness: float = span(0.0, 1.0)
    hair_red: float = span(0.0, 1.0)
    hairline_y: float = span(-70.0, -42.0)
    hairline_arch: float = span(-6.0, 10.0)
    parting: float = span(-22.0, 22.0)
    fringe: float = span(-1.2, 1.0)  # none below 0
    temple: float = span(0.0, 1.0)
    hair_volume: float = span(1.0, 10.0)
    hair_length: float = span(-60.0, 50.0)  # y where the hair at the sides ends
    ears: float = span(0.0, 1.0)
    glasses: float = span(-2.5, 1.0)  # worn from 0 on
    glasses_shape: float = span(0.0, 1.0)


@dataclass(frozen=True)
class View:
    """One photo of a person: pose, expression, light, camera. Angles in radians."""

    yaw: float = span(-0.28, 0.28)
    pitch: float = span(-0.09, 0.09)
    roll: float = span(-0.025, 0.025)  # what alignment leaves over
    zoom: float = span(0.985, 1.015)

    smile: float = span(-0.6, 0.7)
    mouth_open: float = span(-2.5, 0.7)
    brow_raise: float = span(-1.0, 1.8)
    eye_open: float = span(0.7, 1.1)
    blink: float = span(0.0, 1.0)  # closed above 0.97
    gaze_x: float = span(-0.45, 0.45)
    gaze_y: float = span(-0.2, 0.2)

    key_azimuth: float = span(-1.1, 1.1)
    key_elevation: float = span(-0.1, 0.8)
    key: float = span(0.45, 1.2)
    key_warmth: float = span(-1.0, 1.0)
    fill: float = span(0.3, 0.8)
    fill_warmth: float = span(-1.0, 1.0)
    shine: float = span(0.0, 0.35)

    exposure: float = span(-0.75, 0.4)  # stops
    gamma: float = span(0.75, 1.3)
    cast_red: float = span(-0.22, 0.22)
    cast_blue: float = span(-0.36, 0.36)
    saturation: float = span(0.45, 1.15)
    haze: float = span(-0.12, 0.15)
    blur: float = span(-0.8, 1.0)  # deviation in pixels, sharp below 0.3
    motion: float = span(-6.0, 4.0)  # length in pixels, none below 2
    motion_angle: float = span(0.0, 3.1416)
    noise: float = span(0.0, 8.0)  # grey levels

    shave: float = span(0.6, 1.1)
    sunglasses: float = span(0.0, 1.0)  # worn above 0.98
    occlusion: float = span(0.0, 1.0)  # an object in front above 0.95
