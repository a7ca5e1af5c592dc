"""What became of the claims that the first full run judged as not holding, or left undecided.

``python -m lowland.studies.feng_tu.settled STORE`` writes the page ``settled.md`` from the studies
of Feng & Tu in a store. It lists what that run said, by a page of this project's commit 32b8928,
beside what every claim came to in the two readings of the paper's settings.
"""

import sys
from collections.abc import Sequence

from lowland.errors import InputError
from lowland.studies.pages import effect_of, in_letters, row_of
from lowland.studies.reproduce import Judged, Outcome, outcomes
from lowland.studies.study import Finding, Verdict

# By figure and verdict; "norm" are figures whose decay was a norm, as it is in the demo's reading.
_EARLIER: dict[tuple[str, Verdict], tuple[str, ...]] = {
    ("Fig. 2", "does not hold"): (
        "T_w does not change with alpha.",
        "T_w does not change with B.",
    ),
    ("Fig. 2", "undecided"): (
        "The trace of the Hessian goes with the total gradient variance.",
        "Over the 10 sharpest directions H_n is proportional to sigma_g^2.",
    ),
    ("Fig. 3", "does not hold"): (
        "The size of the solution, sigma_w, does not change with alpha.",
        "The size of the solution, sigma_w, does not change with B.",
    ),
    ("Fig. 3", "undecided"): (
        "sigma_g does not change with alpha in the flat directions.",
        "sigma_g does not change with B in the flat directions.",
    ),
    ("Fig. 4", "does not hold"): (
        "sigma_g does not change with beta in the flat directions.",
        "The gap falls with beta.",
        "The flat part of the gap falls with beta.",
        "More of the change with beta is in the flat part than in the sharp part.",
        "The sharp part of the gap does not change with beta.",
    ),
    ("Fig. 4", "undecided"): (
        "The sharp part of the gap does not change with s.",
        "sigma_g does not change with s in the 10 sharpest directions.",
        "sigma_g does not change with beta in the 10 sharpest directions.",
        "sigma_g does not change with s in the flat directions.",
    ),
    ("Fig. 4 (norm)", "does not hold"): (
        "sigma_g does not change with beta in the flat directions.",
    ),
    ("Fig. S2", "does not hold"): ("0 <= c_n in every direction of every run.",),
    ("Fig. S2", "undecided"): ("c_n does not change with d.",),
    ("Fig. S3", "undecided"): ("Eq. 11 goes with the test error.",),
    ("Fig. S4", "undecided"): ("F_n is inversely correlated with sigma_g over directions.",),
    ("Fig. S6", "does not hold"): ("Without dropout most of the gap is in the sharp part.",),
    ("Fig. S6", "undecided"): (
        "From d = 0.1 on it no longer changes there.",
        "The gap is not monotone in d.",
    ),
    ("Fig. S8", "does not hold"): (
        "The size of the solution, sigma_w, does not change with B, hidden layer 1.",
        "The size of the solution, sigma_w, does not change with B, hidden layer 2.",
        "The size of the solution, sigma_w, does not change with B, hidden layer 3.",
        "sigma_g does not change with B in the flat directions, hidden layer 1.",
    ),
    ("Fig. S8", "undecided"): (
        "The solution is larger in hidden layer 3 than in the one before.",
        "The flat part of the gap does not change with B, hidden layer 1.",
        "sigma_g does not change with B in the flat directions, hidden layer 2.",
        "sigma_g does not change with B in the flat directions, hidden layer 3.",
    ),
    ("Fig. S9", "does not hold"): (
        "sigma_g does not change with beta in the flat directions, hidden layer 1.",
        "sigma_g does not change with beta in the flat directions, hidden layer 2.",
        "sigma_g does not change with beta in the flat directions, hidden layer 3.",
        "The gap falls with beta, hidden layer 1.",
        "The flat part of the gap falls with beta, hidden layer 1.",
        "More of the change with beta is in the flat part than in the sharp part, hidden layer 1.",
        "The gap falls with beta, hidden layer 2.",
        "More of the change with beta is in the flat part than in the sharp part, hidden layer 2.",
        "The gap falls with beta, hidden layer 3.",
        "The flat part of the gap falls with beta, hidden layer 3.",
        "More of the change with beta is in the flat part than in the sharp part, hidden layer 3.",
        "The sharp part of the gap does not change with beta, hidden layer 1.",
        "sigma_g does not change with beta in the 10 sharpest directions, hidden layer 1.",
        "The sharp part of the gap does not change with beta, hidden layer 2.",
        "sigma_g does not change with beta in the 10 sharpest directions, hidden layer 2.",
        "The sharp part of the gap does not change with beta, hidden layer 3.",
        "sigma_g does not change with beta in the 10 sharpest directions, hidden layer 3.",
    ),
    ("Fig. S9", "undecided"): (
        "The flat part of the gap falls with beta, hidden layer 2.",
        "The size of the solution, sigma_w, falls with beta, hidden layer 3.",
        "The solution is larger in hidden layer 3 than in the one before.",
    ),
    ("Fig. S9 (norm)", "does not hold"): (
        "sigma_g does not change with beta in the flat directions, hidden layer 1.",
        "sigma_g does not change with beta in the flat directions, hidden layer 2.",
        "sigma_g does not change with beta in the flat directions, hidden layer 3.",
        "The sharp part of the gap does not change with beta, hidden layer 1.",
        "sigma_g does not change with beta in the 10 sharpest directions, hidden layer 1.",
        "The sharp part of the gap does not change with beta, hidden layer 2.",
    ),
    ("Fig. S9 (norm)", "undecided"): (
        "sigma_g does not change with beta in the 10 sharpest directions, hidden layer 2.",
        "The sharp part of the gap does not change with beta, hidden layer 3.",
        "sigma_g does not change with beta in the 10 sharpest directions, hidden layer 3.",
    ),
    ("Fig. S10", "undecided"): (
        "The sharp part of the gap does not change with s.",
        "sigma_g does not change with s in the 10 sharpest directions.",
        "The gap rises with rho.",
        "The flat part of the gap rises with rho.",
        "More of that rise is in the flat part.",
        "sigma_g rises with rho in all flat directions.",
        "sigma_g falls with rho in the 10 sharpest directions.",
        "The spectrum becomes continuous: its steepest drop falls with rho.",
    ),
    ("Fig. S11", "does not hold"): (
        "The size of the solution, sigma_w, does not change with alpha / B.",
    ),
}

_DROPPED: tuple[tuple[str, str, Verdict, str], ...] = (
    (
        "Fig. 2",
        "Over the 50 sharpest directions H_n is proportional to sigma_g^2.",
        "does not hold",
        "no paper says it: dropped",
    ),
    ("Fig. 3", "It does in every setting.", "does not hold", "no paper says it: dropped"),
    (
        "Fig. S3",
        "The training error is 0.",
        "does not hold",
        "a rule by which trainings end: dropped",
    ),
    (
        "Fig. S7",
        "sigma_g falls with N in the flattest half of all directions.",
        "undecided",
        "the paper says all directions: judged so now",
    ),
)
# A heading, and what the table counts: the first that fits a claim is its own.
_SECTIONS = {
    "Against the paper": "remains a finding against the paper, in every reading",
    "Settled by the demo's settings": "holds with the settings of the authors' demo, and not with "
    "those that are printed",
    "Holds now": "holds now, with the settings as printed (more realisations that converge, tests "
    "that say what the paper says)",
    "Open": "remains open, in one reading at least, and holds in none",
}
_REASONS = {
    "Against the paper": """
What is behind them, with the numbers in the studies:

- *The size of the solution is not constant in alpha and B* (Fig. 2, 3, S8, S11). |w| hardly moves,
  but fewer hidden units are active for an image, so that |dx| / |x| grows with alpha / B, and
  sigma_w with it. The page has both as questions of ours under Fig. 3.
- *Weight decay also flattens the flat directions* (Fig. 4, S9), in the paper's network and, more
  so, in the deeper one. Why is not known.
- *c_n is negative* (Fig. S2) only where next to nothing of the gap is: in the directions that carry
  99 % of it the least is positive, 0.12 to 0.14 on average.
- *Without dropout* (Fig. S6) the sharp part is two fifths of the gap, as it is in Fig. 3 with
  alpha = 0.1 and B = 25. Why sharpness does not saturate with d is not known: it rises again at
  d = 0.3 as printed, and goes on falling in the demo's reading.
- *Deeper layers* (Fig. S8) are larger by T_w and smaller by S_w, which the figure shows: their size
  is in fewer directions.
""",
    "Holds now": """
What does not change with s is judged from s = 2 on, the reference of Fig. S5; from s = 1 on it does
change, as the paper's page has among questions of ours.
""",
    "Settled by the demo's settings": """
With one norm of all weights as the penalty, as in the demo, the gap falls with beta by its flat
part, as the paper says; with the squared weights of its text the network fits its data only after
the penalty has ended, and its norm grows again. The other rows lie on either side of a margin:
sigma_g of the flat directions changes by 11 to 12 % with alpha and B in the demo's reading, and by
21 to 30 % as printed, where 20 % count as no change; H_n follows sigma_g^2 by a power of 1.07, and
as printed of 1.3.
""",
    "Open": """
Most lie on a margin in one reading and fail in the other: with the demo's penalty the sharp part
and the sharpest directions of the deeper network change with beta by 13 to 25 %, where 20 % count
as no change; with the squared weights they grow by 74 to 141 % (see Fig. 4). The gap of Fig. S6 is
within a few per cent of monotone. What Fig. S10 leaves open lies on a margin, or is small beside
the spread of its realisations.
""",
}


def section_of(verdicts: Sequence[Verdict]) -> str:
    """The section of a claim with these verdicts: as printed, then as in the demo where it is."""
    if verdicts[0] == "holds":
        return "Holds now"
    if "holds" in verdicts:
        return "Settled by the demo's settings"
    return "Open" if "undecided" in verdicts else "Against the paper"


def settled(reproduced: Sequence[Outcome]) -> str:
    """The page, from the outcomes of all studies of the paper."""
    judged = {
        (outcome.figure, claim.text): claim for outcome in reproduced for claim in outcome.claims
    }
    rows: dict[str, list[str]] = {name: [] for name in _SECTIONS}
    for (figure, before), texts in _EARLIER.items():
        for text in texts:
            claim = judged.get((figure.removesuffix(" (norm)"), text))
            if claim is None:
                raise InputError(
                    f"the store has no verdict of today on {figure}; run `lowland reproduce "
                    "feng-tu --out STORE` first"
                )
            section = section_of([finding.verdict for finding in claim.findings])
            rows[section].append(_row(figure, before, claim))
    counts = {words: len(rows[name]) for name, words in _SECTIONS.items()}
    counts["is no claim any more"] = len(_DROPPED)
    parts = [
        "# What the authors' own settings settle",
        "The first full run judged 43 claims of Feng & Tu as not holding, and 32 as undecided. "
        "Here is what became of each in the two readings of the paper's settings, with the tests "
        "and realisations of today; effects with their 95 % intervals, as in [the paper's page]"
        "(feng-tu.md). Fig. S10 has one reading: the demo has no network for CIFAR-10. Rows marked "
        "(norm) are of figures that the first run had twice, the second time with a norm as the "
        "penalty. The demo's reading stands for those now, so their numbers are there twice.",
        _table(("what became of it", "claims"), [(w, str(n)) for w, n in counts.items()]),
    ]
    head = ("figure", "claim", "before", "as printed", "as in the demo")
    for name, lines in rows.items():
        table = "\n".join([_table(head, []), *lines])
        parts += [f"## {name}", in_letters(_REASONS.get(name, "").strip()), table]
    dropped = [(figure, in_letters(text), before, why) for figure, text, before, why in _DROPPED]
    parts += ["## No claim any more", _table(("figure", "claim", "before", "why"), dropped)]
    parts.append("Written by `python -m lowland.studies.feng_tu.settled STORE`.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _row(figure: str, before: Verdict, claim: Judged) -> str:
    each = [*map(_told, claim.findings), "–"][:2]
    return row_of((figure, in_letters(claim.text), before, *each))


def _told(finding: Finding) -> str:
    return f"{effect_of(finding)}, {finding.verdict}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([row_of(head), f"|{' --- |' * len(head)}", *map(row_of, rows)])


def main(arguments: Sequence[str]) -> None:
    """Print the page of the store that is named."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m lowland.studies.feng_tu.settled STORE")
    try:
        text = settled([o for o in outcomes(arguments[0]) if o.paper == "feng-tu"])
    except InputError as error:
        raise SystemExit(f"lowland: {error}") from None
    sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
