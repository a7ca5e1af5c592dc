"""Landscapes as types: written, read again, and refused when they do not fit."""

import json

import numpy as np
import pytest

from example import changed, make_results
from landscapes import make_landscape
from lowland.errors import InputError
from lowland.findings import Landscape, from_json, to_json


def test_a_landscape_is_read_as_it_was_written():
    results = changed(make_results(), "", landscape=make_landscape())
    document, arrays = to_json(results)
    assert {"landscape/train", "landscape/lines/0/x", "landscape/routes/curve/t"} <= set(arrays)
    again = from_json(json.dumps(document, allow_nan=False), arrays).landscape
    surface = results.landscape.surface
    np.testing.assert_array_equal(again.surface.train, surface.train)
    assert again.surface.holes == surface.holes == 1
    assert again.surface.marks == surface.marks
    assert again.lines[0].quadratic == results.landscape.lines[0].quadratic
    assert again.path.routes["curve"].barrier == results.landscape.path.routes["curve"].barrier


def test_results_without_a_landscape_have_none():
    document, arrays = to_json(changed(make_results(), "", landscape=None))
    assert document["landscape"] is None
    assert from_json(json.dumps(document), arrays).landscape is None
    assert Landscape().lines == ()


def test_the_quadratic_is_drawn_as_its_coefficients_say():
    surface = make_landscape().surface
    q, (x, y) = surface.quadratic, (surface.x, surface.y)
    i, j = 3, 5
    expected = q.value + q.slope[0] * x[j] + q.slope[1] * y[i]
    expected += q.curvature[0] * x[j] ** 2 / 2 + q.curvature[1] * x[j] * y[i]
    expected += q.curvature[2] * y[i] ** 2 / 2
    assert q.over(x, y)[i, j] == pytest.approx(expected, rel=1e-12)


def test_arrays_that_do_not_fit_the_grid_are_refused():
    with pytest.raises(InputError, match=r"train should have the shape \(21, 25\)"):
        changed(make_landscape(), "surface", train=np.zeros((25, 21)))
