"""Panels and claims that figures have in common."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from lowland_studies.claims import (
    Test,
    beside,
    falls,
    falls_most,
    larger_part,
    on,
    rises,
    rises_most,
    smaller_part,
    unchanged,
)
from lowland_studies.directions import rises_everywhere
from lowland_studies.evidence import Column
from lowland_studies.feng_tu.columns import (
    HIDDEN,
    LAYERS,
    LayerColumns,
    flat_sigma_g,
    flat_size,
    flat_size_over_sharp_size,
    steepest_drop,
)
from lowland_studies.feng_tu.grids import LETTERS, N_SHARP, NOISY, only
from lowland_studies.panels import Against, Panel, Spectrum
from lowland_studies.study import Claim, Kind

_TRENDS: dict[str, Callable[[Column, str], Test]] = {"falls": falls, "rises": rises}
_MOST = {"falls": falls_most, "rises": rises_most}


Row = tuple[str, str, Test]  # a sentence, where the paper has it, what decides


def claims_on(where: dict[str, Any], *rows: Row, kind: Kind = "claim") -> tuple[Claim, ...]:
    """Claims about these runs, all of one kind."""
    return tuple(Claim(text, f"Fig. {paper}", on(where, test), kind) for text, paper, test in rows)


def c_panel(key: str, where: dict[str, Any]) -> Panel:
    """The correlation coefficient of shifts and gradients, by direction."""
    return Spectrum("duality/c", key, "$c_n$", log="x", where=where)


def three_panels(
    key: str, where: dict[str, Any], layer: LayerColumns = HIDDEN
) -> tuple[Panel, Panel, Panel]:
    """The sharpness spectrum, the accumulative size, and the gap with its two parts."""
    columns: dict[str, Column] = {
        "$\\Delta L$": layer.column("eq11"),
        "$\\Delta L_s$": layer.column("sharp"),
        "$\\Delta L_f$": layer.column("flat"),
    }
    log = "" if key in ("decay", "init_scale", "dropout", "label_noise") else "x"
    both: dict[str, Any] = {"where": where, "title": layer.title}
    return (
        Spectrum(layer.array("sigma_g"), key, "$\\sigma_{g,n}$", mark=N_SHARP, **both),
        Spectrum(layer.accumulated, key, "$S_{w,n}$", log="x", **both),
        Against(key, columns, "generalisation gap", log=log, **both),
    )


@dataclass(frozen=True)
class _About:
    """Sentences about what a setting does in a layer, with the tests that decide them."""

    key: str
    trend: str
    layer: LayerColumns

    def moves(self, what: str, figure: str, column: Column, where: str = "") -> Row:
        """The claim that a column follows the trend."""
        test = _TRENDS[self.trend](column, self.key)
        return self._said(f"{what} {self.trend}", where), f"{figure}: {self.trend}", test

    def stays(self, what: str, figure: str, column: Column, where: str = "") -> Row:
        """The claim that a column does not change."""
        text = self._said(f"{what} does not change", where)
        return text, f"{figure}: no significant change", unchanged(column, self.key)

    def mostly(self, part: str, other: str, figure: str) -> tuple[Row, ...]:
        """The claims that the gap changes by one part of it, and that the other part does not."""
        gap, larger, rest = (self.layer.column(name) for name in ("eq11", part, other))
        return (
            self.moves("The gap", figure, gap),
            self.moves(f"The {part} part of the gap", figure, larger),
            self.stays(f"The {other} part of the gap", figure, rest),
            (
                self._said(
                    "More of the change", f" is in the {part} part than in the {other} part"
                ),
                f"{figure}: mainly in the {part} part",
                _MOST[self.trend](larger, rest, self.key, gap),
            ),
        )

    def _said(self, what: str, where: str) -> str:
        place = f", {self.layer.title}" if self.layer.title else ""
        return f"{what} with {LETTERS[self.key]}{where}{place}."


_SHARP, _FLAT = " in the 10 sharpest directions", " in the flat directions"
_SIZE = "The size of the solution, sigma_w,"


def by_sharpness(
    key: str, trend: str, figures: list[str], layer: LayerColumns = HIDDEN
) -> tuple[Claim, ...]:
    """As the paper says of alpha and B: they act on the sharp directions, by their sharpness."""
    about, (spectrum, size, parts) = _About(key, trend, layer), figures
    return claims_on(
        only(key),
        *about.mostly("sharp", "flat", parts),
        about.moves("sigma_g", spectrum, layer.sharpness, _SHARP),
        about.stays("sigma_g", spectrum, layer.flat_sharpness, _FLAT),
        about.stays(_SIZE, size, layer.size),
    )


def by_size(
    key: str,
    trend: str,
    figures: list[str],
    layer: LayerColumns = HIDDEN,
    where: dict[str, Any] | None = None,
) -> tuple[Claim, ...]:
    """As the paper says of beta and s: they act on the flat directions, by the size."""
    about, (spectrum, size, parts) = _About(key, trend, layer), figures
    return claims_on(
        only(key) if where is None else where,
        *about.mostly("flat", "sharp", parts),
        about.stays("sigma_g", spectrum, layer.sharpness, _SHARP),
        about.stays("sigma_g", spectrum, layer.flat_sharpness, _FLAT),
        about.moves(_SIZE, size, layer.size),
    )


def from_the_plain_scale(figures: list[str]) -> tuple[Claim, ...]:
    """What does not change with s, if s = 1 counts as well, which the paper may not have had."""
    about, (spectrum, _, parts) = _About("init_scale", "rises", HIDDEN), figures
    rows = (
        about.stays("The sharp part of the gap", parts, "sharp"),
        about.stays("sigma_g", spectrum, HIDDEN.sharpness, _SHARP),
        about.stays("sigma_g", spectrum, HIDDEN.flat_sharpness, _FLAT),
    )
    own = ((f"From s = 1 on: {text}", paper, test) for text, paper, test in rows)
    return claims_on(only("init_scale"), *own, kind="ours")


def with_random_labels(
    where: dict[str, Any], spectrum: str, size: str, parts: str
) -> tuple[Claim, ...]:
    """As the paper says of rho: the gap rises, and mostly in the flat directions."""
    rho = "label_noise"
    growth = rises_most("flat", "sharp", rho, of="eq11")
    return claims_on(
        where,
        ("The gap rises with rho.", f"{parts}: rises", rises("eq11", rho)),
        ("The flat part of the gap rises with rho.", f"{parts}: rises", rises("flat", rho)),
        ("More of that rise is in the flat part.", f"{parts}: dominantly in the flat part", growth),
        (
            "With random labels most of the gap is in the flat part.",
            f"{parts}: dominated by the flat part",
            on(NOISY, larger_part("flat", "eq11")),
        ),
        (
            "sigma_g rises with rho in all flat directions.",
            f"{spectrum}: all the flat directions",
            beside(
                rises_everywhere(flat_sigma_g, rho),
                rises(HIDDEN.flat_sharpness, rho),
                "the mean of the flat directions",
            ),
        ),
        (
            "sigma_g falls with rho in the 10 sharpest directions.",
            f"{spectrum}: falls",
            falls(HIDDEN.sharpness, rho),
        ),
        (
            "The spectrum becomes continuous: its steepest drop falls with rho.",
            f"{spectrum}: no sudden drop",
            falls(steepest_drop, rho),
        ),
        (
            "The size of the solution, sigma_w, rises with rho.",
            f"{size}: rises significantly",
            rises(HIDDEN.size, rho),
        ),
        (
            "sigma_w rises with rho in the flat directions.",
            f"{size}, Sec. 4.3: in almost all of them",
            rises(flat_size, rho),
        ),
    )


def on_flat(
    key: str, trend: str, figure: str, where: dict[str, Any], kind: Kind = "claim"
) -> tuple[Claim, ...]:
    """As the paper says of beta, and draws of s: the size changes most in the flat directions."""
    text = f"sigma_w {trend} with {LETTERS[key]} more strongly in the flat directions."
    test = _TRENDS[trend](flat_size_over_sharp_size, key)
    row = text, f"{figure}: stronger in the flat directions", test
    return claims_on(where, row, kind=kind)


def in_every_layer(
    claims: Callable[..., tuple[Claim, ...]], key: str, trend: str, figure: str
) -> tuple[Claim, ...]:
    """The same claims about each layer, and those about what depth does."""
    every: list[Claim] = []
    for layer, letters in zip(LAYERS, ("ABC", "DEF", "GHI"), strict=True):
        gap, *others = claims(key, trend, [f"{figure}{letter}" for letter in letters], layer)
        # The gap is one number, whichever layer it is taken apart in.
        every += [gap if layer is LAYERS[0] else replace(gap, kind="restated"), *others]
    for before, after in pairwise(LAYERS):
        flatter = beside(
            smaller_part(after.whole_sharpness, before.whole_sharpness, 1.0),
            smaller_part(after.column("total_g"), before.column("total_g"), 1.0),
            "T_g",
        )
        larger = beside(
            larger_part(after.size, before.size, 1.0),
            larger_part(after.column("total_w_data"), before.column("total_w_data"), 1.0),
            "T_w",
        )
        every += claims_on(
            {},
            (
                f"The loss is flatter in {after.title} than in the one before.",
                f"{figure}, Sec. 5: flatter towards the output",
                flatter,
            ),
            (
                f"The solution is larger in {after.title} than in the one before.",
                f"{figure}, Sec. 5: larger towards the output",
                larger,
            ),
        )
    return tuple(every)
