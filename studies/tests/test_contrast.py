"""The table of every measure against a plain kind, from made-up runs."""

from pathlib import Path

import numpy as np
import pytest

from lowland_studies.contrast import every_measure
from lowland_studies.evidence import Runs

# By seed, so that a method differs from plain SGD by exactly this part of its mean.
NOISE = (-0.1, 0.0, 0.1)
CHANGES = {"trace": -0.5, "width": 0.25, "test_error": 2.0, "vc_dimension": 0.0}


def runs():
    rows = []
    for method in ("sgd", "sam"):
        for seed, noise in enumerate(NOISE):
            row = {"method": method, "seed": seed, "condition_number": None}
            for name, change in CHANGES.items():
                spread = 0 if name == "vc_dimension" else noise
                row[name] = 10 * (1 + spread + (change + 0.3 * spread) * (method == "sam"))
            row["largest_eigenvalue"] = 1 + seed * (method == "sam") - (method == "sam")
            rows.append(row)
    return Runs(tuple(rows), (), Path("nowhere"))


def cells(text):
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


def test_changes_are_told_with_their_sign_and_counted():
    table = cells(every_measure(runs(), "method", "sgd"))
    # Student's interval of three differences 0.03 apart; 4.303 is its quantile.
    reach = 100 * 4.303 * 0.03 / np.sqrt(3)
    ends = f"{-50 - reach:.0f}, {-50 + reach:.0f}".replace("-", "−")
    assert table["Hessian trace"] == ["10", f"**−50 [{ends}]**"]
    # More width is flatter: its negative falls.
    assert table["Width (negative)"][1].startswith("**−25 [")
    assert table["Test error&ensp;†"][1].startswith("**200 [")
    assert table["Largest Hessian eigenvalue"][1] == "0 [−248, 248]"
    assert table["*flatter / sharper / open*"][-1] == "2 / 0 / 1"
    # What settings decide, or has no number, is no row.
    assert not any("VC dimension" in name or "ondition" in name for name in table)


def test_without_runs_there_is_no_table():
    assert every_measure(Runs((), (), Path("nowhere")), "method", "sgd") == ""


@pytest.mark.parametrize("value", [99.96, 9.96, 0.0123])
def test_numbers_are_never_written_with_an_exponent(value):
    from lowland_studies.contrast import _told

    assert "e" not in _told((value, -value, 3 * value))
