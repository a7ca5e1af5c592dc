"""The gap explained: a layer in full, the same with balanced units, all layers in short."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lowland.analysis.checks import agreement, identities
from lowland.budget import Work
from lowland.curvature import Kind, layer, layers
from lowland.dual import (
    ALL_DIRECTIONS,
    Choice,
    Pairs,
    Rule,
    choose,
    duality,
    far_from_dual,
    layers_with_dual,
    split_work,
)
from lowland.errors import InputError
from lowland.findings import TRUSTED, Check, Decomposition, Gauge, LayerRow
from lowland.measures import Subset, stratified
from lowland.problem import Problem
from lowland.usercode import described

WIDTHS = 100  # directions whose width is computed: enough for a picture
# Directions x samples up to which widths and leading-order terms are computed: some seconds.
_DETAILS = 5_000_000
# Weights of the whole model up to which every layer is decomposed.
_LAYERS = 1_000_000


@dataclass(frozen=True)
class How:
    """What the caller wants of the decomposition."""

    gauge: Gauge
    basis: Kind
    n_sharp: int | Rule
    widths: int | None
    brief: bool


class Step(NamedTuple):
    """A part of the explanation, what it takes, and what it takes without details."""

    run: Callable[[], None]
    work: Work
    plain: Work


@dataclass
class Explanation:
    """What is explained so far, step by step: each adds what it finds, and a note if it cannot.

    Each layer is decomposed once, and the chosen one once more with balanced units.
    """

    problem: Problem
    layer_name: str | None  # that the caller wants, who is then told of any error
    how: How
    tell: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    samples: int | None = None  # of a subset to compute with, if not all
    choice: Choice | None = None
    duality: Decomposition | None = None
    balanced: Decomposition | None = None
    layer_rows: tuple[LayerRow, ...] = ()
    checks: tuple[Check, ...] = ()

    def choose(self) -> None:
        """Choose the layer that stands for the model, and pair the samples."""
        self._attempt("The gap was not decomposed", self._choose, self.layer_name is not None)

    def split(self) -> None:
        """Decompose the gap over the directions of the chosen layer, and check the identities."""
        self._attempt("The gap was not decomposed", self._split, self.layer_name is not None)

    def balance(self) -> None:
        """Decompose it once more in the gauge that no rescaling of hidden units can move."""
        self._attempt("Units were not balanced", self._balance)

    def compare_layers(self) -> None:
        """Decompose every other layer too, in one pass, for a row of each."""
        self._attempt("The other layers were not decomposed", self._compare_layers)

    @property
    def steps(self) -> "dict[str, Step]":
        """What is left to do once a layer is chosen, by what it gives, in this order."""
        if self.choice is None:
            return {}
        problem, how, pairs = self.problem, self.how, len(self.choice.pairs)
        own = [layer(problem, self.choice.layer)]
        detailed = split_work(
            problem, own, pairs, basis=how.basis, details=self.in_detail, widths=self._widths
        )
        plain = split_work(problem, own, pairs, basis=how.basis)
        steps = {f"the split of layer {self.choice.layer!r}": Step(self.split, detailed, plain)}
        if how.brief:
            return steps
        if how.gauge != "balanced" and self._is_small:
            steps["the same with balanced units"] = Step(self.balance, plain, plain)
        if self._others:
            others = [layer(problem, name) for name in self._others]
            work = split_work(problem, others, pairs, basis=how.basis)
            steps["the other layers"] = Step(self.compare_layers, work, work)
        return steps

    def _attempt(self, what: str, step: Callable[[], None], strict: bool = False) -> None:
        """Do a step; where it fails, by the user's code or a defect of ours, the rest stands."""
        try:
            step()
        except Exception as error:
            if strict:
                raise
            why = error if isinstance(error, InputError) else described(error)
            self.notes.append(f"{what}: {why}.")

    @property
    def _size(self) -> int:
        assert self.choice is not None
        return layer(self.problem, self.choice.layer).size

    @property
    def _is_small(self) -> bool:
        return self._size <= ALL_DIRECTIONS

    @cached_property
    def _others(self) -> list[str]:
        """The layers beside the chosen one that have a dual; none of a large model.

        One of which only leading directions can be found, at the cost of many products, must also
        have a useful dual.
        """
        assert self.choice is not None
        if self._is_large:
            return []
        names = [name for name in layers_with_dual(self.problem) if name != self.choice.layer]
        far = [name for name in names if self._is_far(name)]
        if far:
            self.notes.append(
                f"Layers without a useful dual that were not decomposed: "
                f"{', '.join(map(repr, far))} (some pairs show that activities or losses are "
                f"missed by more than {TRUSTED:.0%})."
            )
        return [name for name in names if name not in far]

    def _is_far(self, name: str) -> bool:
        """Whether a wide layer is known to have no useful dual."""
        assert self.choice is not None
        wide = layer(self.problem, name)
        try:
            return wide.size > ALL_DIRECTIONS and far_from_dual(
                self.problem, wide, self.choice.pairs
            )
        except InputError:  # which the decomposition will say
            return False

    @property
    def _is_large(self) -> bool:
        return sum(weight.size for weight in layers(self.problem).values()) > _LAYERS

    @property
    def in_detail(self) -> bool:
        """Whether widths and leading-order terms are computed, which takes all samples."""
        assert self.choice is not None
        if self.samples is not None:
            return False
        numbers = self._size * (len(self.problem.train) + len(self.choice.pairs))
        return not self.how.brief and self._is_small and numbers <= _DETAILS

    @property
    def _widths(self) -> int:
        if self.how.widths is not None:
            return self.how.widths
        return WIDTHS if self.in_detail else 0

    def _choose(self) -> None:
        self.choice = choose(self.problem, self.layer_name)
        self.notes += self.choice.notes

    @cached_property
    def _pairs(self) -> Pairs:
        """All pairs, or a stratified choice of as many as there are samples to compute with."""
        assert self.choice is not None
        pairs = self.choice.pairs
        if self.samples is None or self.samples >= len(pairs):
            return pairs
        places = stratified(self.problem.test.targets[pairs.test], self.samples).sort().values
        rule = f"{pairs.rule}; {self.samples:,} of {len(pairs):,} pairs, stratified"
        return replace(pairs, train=pairs.train[places], test=pairs.test[places], rule=rule)

    @cached_property
    def _curvature(self) -> Problem | None:
        """The problem with the samples that directions are computed from; None for all."""
        return None if self.samples is None else Subset(self.problem, self.samples).whole

    def _split(self) -> None:
        assert self.choice is not None
        how, choice = self.how, self.choice
        split = duality(
            self.problem,
            choice.layer,
            pairs=self._pairs,
            curvature=self._curvature,
            gauge=how.gauge,
            basis=how.basis,
            n_sharp=how.n_sharp,
            leading_order=self.in_detail,
            widths=self._widths,
            progress=self.tell,
        )
        checks = (*identities(split), agreement(self.problem, self._pairs))
        self.notes += _notes(split, choice)
        self.duality, self.checks = split, checks
        if how.brief:
            return
        if self._is_large:
            self.notes.append(
                f"The model has more than {_LAYERS:,} weights, so its other layers were not "
                "decomposed; lowland.duality(problem) does that."
            )
        elif not self._others:
            self.layer_rows = (split.row,)

    def _compare_layers(self) -> None:
        split, how, problem = self.duality, self.how, self.problem
        if split is None:
            return
        decomposed = duality(
            problem,
            self._others,
            pairs=self._pairs,
            curvature=self._curvature,
            gauge=how.gauge,
            basis=how.basis,
            n_sharp=how.n_sharp,
            progress=self.tell,
        )
        splits = {split.layer: split, **decomposed}
        self.notes += [
            f"Layer {name!r} was skipped: {why}." for name, why in decomposed.skipped.items()
        ]
        self.layer_rows = tuple(
            splits[name].row for name in layers_with_dual(problem) if name in splits
        )

    def _balance(self) -> None:
        split = self.duality
        if split is None or not split.complete:
            return
        try:
            balanced = duality(
                self.problem,
                split.layer,
                pairs=self._pairs,
                curvature=self._curvature,
                gauge="balanced",
                basis=self.how.basis,
                n_sharp=split.n_sharp,
            )
        except InputError:  # units that cannot be rescaled
            return
        assert balanced.per_pair is not None
        assert split.per_pair is not None
        # Rounding may give a pair a shift, or take it away.
        if np.array_equal(balanced.per_pair.test, split.per_pair.test):
            rule = split.setting.n_sharp_rule  # of the number that both have
            self.balanced = replace(balanced, setting=replace(balanced.setting, n_sharp_rule=rule))

    def finish(self) -> None:
        """Note which layers have no useful dual."""
        if useless := [row.layer for row in self.layer_rows if not row.trusted]:
            self.notes.append(
                f"Layers without a useful dual: {', '.join(map(repr, useless))} (activities or "
                f"losses are missed by more than {TRUSTED:.0%})."
            )


def _notes(split: Decomposition, choice: Choice) -> list[str]:
    """What a reader of the decomposition should know."""
    notes = []
    totals, fit = split.totals, split.fit
    if fit.excluded:
        notes.append(
            f"{fit.excluded} test sample(s) have no dual shift in layer {split.layer!r} (its "
            "inputs are zero, or equal to the partner's); they carry "
            f"{fit.excluded_gap:.3g} of the gap."
        )
    if choice.pairs.unpaired:
        notes.append(
            f"{choice.pairs.unpaired} test sample(s) have a label that no training sample has, "
            "and so no partner."
        )
    if split.widths is not None and np.isnan(split.widths.flatness).all():
        notes.append("The training loss is 0, so that no width F_n belongs to a factor of it.")
    if abs(totals.target_gap) > TRUSTED * abs(totals.paired_gap):
        notes.append(
            "The partners have different targets, which alone change the loss by "
            f"{totals.target_gap:.3g}, beside the paired gap of {totals.paired_gap:.3g}: no "
            "weight stands for that."
        )
    return notes
