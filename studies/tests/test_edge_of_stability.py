"""The study of the edge of stability: its formula, its predicates, and the quick version."""

import csv
from itertools import pairwise

import pytest
import torch
from torch import nn

import lowland as ll
from lowland_studies.edge_of_stability import QUICK, Training, edge, judged, main


@pytest.mark.parametrize("rho", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("gradient", [0.1, 3.0])
def test_a_step_of_our_sam_at_the_edge_ends_as_far_on_the_other_side(rate, rho, gradient):
    """On 1/2 c x^2 with the c of the edge, at the x that has this gradient."""
    c = edge(rate, rho, gradient)
    for factor in (0.9, 1.0, 1.1):
        curvature = factor * c
        x = nn.Parameter(torch.tensor([gradient / curvature], dtype=torch.float64))
        before = x.item()
        optimizer = ll.optim.SAM([x], torch.optim.SGD, rho=rho, lr=rate)
        (curvature * x.square().sum() / 2).backward()
        optimizer.first_step()
        (curvature * x.square().sum() / 2).backward()
        optimizer.step()
        if factor == 1.0:
            assert x.item() == pytest.approx(-before, rel=1e-9)
        else:
            assert (abs(x.item()) > before) == (factor > 1)


def of(eigenvalues, losses, rate=0.1, rho=0.0):
    steps = list(range(len(eigenvalues)))
    return Training(rate, rho, losses, steps, eigenvalues, [20.0] * len(steps))


GOOD = of([5.0, 12.0, 20.0, 21.0, 20.5], [9.0, 7.0, 6.0, 6.2, 5.0])


def test_predicates_tell_what_they_say():
    assert list(judged([GOOD, of([24.0, 21.0, 9.0], [3.0, 2.0, 1.0], rho=0.1)]).values()) == [
        *(True, True, True),  # rises, the loss falls with rises in between, stays
        True,  # SAM stays
        True,  # and is flatter
    ]
    assert list(judged([GOOD, of([20.0, 40.0, 41.0], [3.0], rho=0.1)]).values())[3:] == [False] * 2
    for place, spoilt in enumerate(
        (
            of([16.0, 20.0, 20.0, 21.0], [9.0, 6.0, 6.2, 5.0]),  # begins at the edge
            of([5.0, 20.0, 20.0, 20.0], [9.0, 6.0, 5.2, 5.0]),  # the loss never rises
            of([5.0, 20.0, 40.0, 50.0], [9.0, 6.0, 6.2, 5.0]),  # goes beyond
        )
    ):
        verdicts = list(judged([spoilt]).values())
        assert [verdict for i, verdict in enumerate(verdicts) if i != place] == [True, True]
        assert not verdicts[place]
    never = of([5.0, 12.0, 13.0, 14.0], [9.0, 6.0, 6.2, 5.0])
    assert list(judged([never]).values()) == [False] * 3
    rising = of([5.0, 20.0, 20.0, 20.0], [9.0, 6.0, 6.2, 7.0])
    assert list(judged([rising]).values()) == [True, False, True]


@pytest.mark.slow
def test_the_quick_version_shows_both_edges(tmp_path, capsys):
    main(str(tmp_path), "--quick")
    verdicts = capsys.readouterr().out.splitlines()
    assert len(verdicts) == 5
    assert not [line for line in verdicts if line.startswith("does not hold")]
    rows = list(csv.DictReader((tmp_path / "edge-of-stability.csv").read_text().splitlines()))
    descent = [row for row in rows if row["rho"] == "0.0"]
    assert all(
        float(row["edge"]) == pytest.approx(2 / float(row["eta"]), rel=1e-5) for row in descent
    )
    steps = [int(row["step"]) for row in rows[: QUICK.steps // QUICK.every + 1]]
    assert {b - a for a, b in pairwise(steps)} == {QUICK.every}
    assert (tmp_path / "edge-of-stability.svg").read_text().startswith("<?xml")
