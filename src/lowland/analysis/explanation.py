"""The gap explained: a layer in full, the same with balanced units, all layers in short."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from lowland.analysis.checks import agreement, identities
from lowland.budget import Work
from lowland.curvature import Kind, layer, layers
from lowland.dual import (
    ALL_DIRECTIONS,
    AskedDual,
    Choice,
    Pairs,
    Rule,
    choose,
    duality,
    expected_duals,
    far_from_dual,
    layers_with_dual,
    not_one_matrix,
    obstacle,
    split_work,
)
from lowland.errors import InputError
from lowland.findings import TRUSTED, Check, Decomposition, DualKind, Gauge, LayerRow
from lowland.measures import Subset, stratified
from lowland.problem import Problem
from lowland.usercode import described
from lowland.wording import counted

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
    dual: AskedDual = "auto"


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
        """Decompose every other layer of few weights too, in one pass, for a row of each."""
        run = partial(self._compare_layers, self._others)
        self._attempt("The other layers were not decomposed", run)

    def compare_wide_layers(self) -> None:
        """Decompose the layers of which only leading directions can be computed."""
        self._attempt("The wide layers were not decomposed", self._compare_wide_layers)

    @property
    def steps(self) -> "dict[str, Step]":
        """What is left to do once a layer is chosen, by what it gives, in this order."""
        if self.choice is None:
            return {}
        problem, how, pairs = self.problem, self.how, len(self.choice.pairs)
        own = [layer(problem, self.choice.layer)]
        duals = self._duals([self.choice.layer])
        plain = split_work(problem, own, pairs, basis=how.basis, duals=duals)
        detailed = split_work(
            problem, own, pairs,
            basis=how.basis, details=self.in_detail, widths=self._widths, duals=duals,
        )  # fmt: skip
        steps = {f"the split of layer {self.choice.layer!r}": Step(self.split, detailed, plain)}
        if how.brief:
            return steps
        if how.gauge != "balanced" and self._is_small:
            steps["the split with balanced units"] = Step(self.balance, plain, plain)
        for what, names, run in (
            ("the split of the other layers", self._others, self.compare_layers),
            ("the split of the wide layers", self._wide, self.compare_wide_layers),
        ):
            if names:
                chosen = [layer(problem, name) for name in names]
                duals = self._duals(names)
                work = split_work(problem, chosen, pairs, basis=how.basis, duals=duals)
                steps[what] = Step(run, work, work)
        return steps

    def _attempt(self, what: str, step: Callable[[], None], strict: bool = False) -> None:
        """Do a step; where it fails, by the user's code or a defect of ours, the rest stands."""
        try:
            with self.problem.measuring():
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
        """The layers beside the chosen one whose directions can all be computed."""
        return [name for name in self._beside if name not in self._wide]

    @cached_property
    def _wide(self) -> list[str]:
        """The layers beside the chosen one of which only leading directions can be computed."""
        return [n for n in self._beside if layer(self.problem, n).size > ALL_DIRECTIONS]

    @property
    def _beside(self) -> list[str]:
        """The layers beside the chosen one that have a dual; none of a large model."""
        assert self.choice is not None
        if self._is_large:
            return []
        every = layers_with_dual(self.problem, self.how.dual)
        return [name for name in every if name != self.choice.layer]

    def _duals(self, names: list[str]) -> dict[str, DualKind]:
        """Which dual each layer will have; that of the activities where it cannot be told."""
        assert self.choice is not None
        chosen = [layer(self.problem, name) for name in names]
        try:
            return expected_duals(self.problem, chosen, self.choice.pairs, self.how.dual)
        except InputError:  # which the decomposition will say
            return dict.fromkeys(names, "activity")

    def _is_far(self, name: str) -> bool:
        """Whether a wide layer is known to have no useful dual."""
        assert self.choice is not None
        try:
            return far_from_dual(self.problem, layer(self.problem, name), self.choice.pairs)
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
        self.choice = choose(self.problem, self.layer_name, self.how.dual)
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
        why = obstacle(self.problem, layer(self.problem, choice.layer)) if self.in_detail else None
        if why is not None:
            self.notes.append(f"Leading-order terms were not computed: {why}.")
        split = duality(
            self.problem,
            choice.layer,
            pairs=self._pairs,
            curvature=self._curvature,
            gauge=how.gauge,
            basis=how.basis,
            n_sharp=how.n_sharp,
            dual=how.dual,
            leading_order=self.in_detail and why is None,
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
        self.notes += [
            f"Layer {name!r} was not decomposed: it is {why}."
            for name, why in not_one_matrix(self.problem).items()
        ]
        self.layer_rows = (split.row,)

    def _compare_wide_layers(self) -> None:
        """Decompose those that may have a useful dual: each takes many products."""
        seen_by_few = self.how.dual == "activity"
        far = [name for name in self._wide if seen_by_few and self._is_far(name)]
        if far:
            self.notes.append(
                f"Not decomposed for want of a useful dual: layer "
                f"{', layer '.join(map(repr, far))} (some pairs show that activities or losses are "
                f"missed by more than {TRUSTED:.0%})."
            )
        if near := [name for name in self._wide if name not in far]:
            self._compare_layers(near)

    def _compare_layers(self, names: list[str]) -> None:
        how, problem = self.how, self.problem
        if self.duality is None:
            return
        decomposed = duality(
            problem,
            names,
            pairs=self._pairs,
            curvature=self._curvature,
            gauge=how.gauge,
            basis=how.basis,
            n_sharp=how.n_sharp,
            dual=how.dual,
            progress=self.tell,
        )
        self.notes += [
            f"Layer {name!r} was skipped: {why}." for name, why in decomposed.skipped.items()
        ]
        rows = {row.layer: row for row in self.layer_rows}
        rows |= {name: split.row for name, split in decomposed.items()}
        every = layers_with_dual(problem, how.dual)
        self.layer_rows = tuple(rows[name] for name in every if name in rows)

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
                dual=split.setting.dual,
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
        if useless := [row for row in self.layer_rows if not row.trusted]:
            reasons = "; ".join(f"layer {row.layer!r}: {row.doubt}" for row in useless)
            self.notes.append(f"Without a useful dual: {reasons}.")


def _notes(split: Decomposition, choice: Choice) -> list[str]:
    """What a reader of the decomposition should know."""
    notes = []
    totals, fit, have = split.totals, split.fit, ("has", "have")
    if fit.excluded:
        why = "its inputs are zero, or equal to the partner's"
        if fit.solving is not None:
            why = "its outputs are equal to the partner's, or no change of the weight gives them"
        notes.append(
            f"{counted(fit.excluded, 'test sample', have)} no dual shift in layer "
            f"{split.layer!r} ({why}), which makes {fit.excluded_gap:.3g} of the gap."
        )
    if choice.pairs.unpaired:
        notes.append(
            f"{counted(choice.pairs.unpaired, 'test sample', have)} a label that no training "
            "sample has, and so no partner."
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
