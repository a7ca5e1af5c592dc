"""What a decomposition takes: passes over the data, and linear algebra with a layer's matrices."""

from collections.abc import Mapping, Sequence

from lowland.budget import Work
from lowland.curvature import Kind, Layer, layers, outputs_of_a_sample
from lowland.dual.basis import ALL_DIRECTIONS, LEADING, route
from lowland.dual.flatness import CROSSING, LINES, lines_of
from lowland.dual.least_norm import FLOW, TOWARDS
from lowland.dual.matching import MATCHED
from lowland.dual.output_shifts import AGAIN, AGAIN_STARTS
from lowland.findings import DualKind
from lowland.problem import Problem

_EIGENVECTORS = 25  # operations for each of M^3, of a product of matrices in the same time
_PRODUCTS = 3 * LEADING  # until the leading directions are found, as a rule
# A pass that also looks at the layers' inputs, and one with a weight for each sample, in passes.
_SEEN, _REPLAYED = 2, 4
# Evaluations of the equations of one pair until they are solved, as a rule, some of them from other
# starts; and the share of one of these that is not for gradients, in passes.
_EVALUATIONS, _ANSWERED = FLOW + TOWARDS + 6, 2


def split_work(
    problem: Problem,
    chosen: Sequence[Layer],
    pairs: int,
    *,
    basis: Kind = "hessian",
    details: bool = False,
    widths: int = 0,
    duals: Mapping[str, DualKind] | None = None,
) -> Work:
    """What :func:`duality` of the chosen layers takes, beside the pairing.

    ``duals`` says, by layer, which dual each has; by default all have that of the activity level.
    """
    if not chosen:
        return Work()
    share = pairs / problem.count()
    work = Work(forwards=share * (2 * _SEEN + _REPLAYED * len(chosen)))
    work += Work(diagonals=max(_reach(problem, at) for at in chosen))
    for at in chosen:
        work += _directions(problem, at, basis) + _shifts(at, pairs)
        if duals is not None and duals[at.name] == "output":
            work += _solving(problem, at, pairs)
        listed = at.size if at.size <= ALL_DIRECTIONS else LEADING
        work += Work(sample_flops=(20 if details else 8) * pairs * at.size * listed)
        if widths:
            tail = sum(other.size * other.positions for other in _from(problem, at))
            lines = LINES * widths
            blocks = -(-lines // lines_of(problem, at))
            work += Work(
                forwards=CROSSING * blocks,
                sample_flops=6 * CROSSING * lines * problem.count() * tail,
            )
    return work


def pairing_work(problem: Problem) -> Work:
    """What :func:`pair` takes: distances within each class, as if there were ten."""
    sample = problem.first(1).inputs
    features = getattr(sample, "numel", lambda: 0)()
    return Work(sample_flops=problem.count() * problem.count("test") * features)


def _from(problem: Problem, at: Layer) -> list[Layer]:
    """The layer and those after it."""
    return [other for other in layers(problem).values() if other.order >= at.order]


def _reach(problem: Problem, at: Layer) -> float:
    """The share of a backward pass that is behind it when it comes to the layer."""
    every = layers(problem)
    return len(_from(problem, at)) / len(every)


def _directions(problem: Problem, at: Layer, basis: Kind) -> Work:
    groups, out, inputs = at.shape
    M, N, C = at.size, problem.count(), outputs_of_a_sample(problem)
    way = route(problem, at, basis, None)
    if way == "dense":
        outer = at.positions == 1 and groups == 1
        block = out**2 * inputs**2 / 2 if outer else 2 * C * M**2
        return Work(sample_flops=N * block, flops=_EIGENVECTORS * M**3)
    if way == "products":
        return Work(products=min(M, _PRODUCTS), flops=4 * M * _PRODUCTS * 2 * LEADING)
    share = problem.dtype.itemsize / 8  # operations are priced in float64
    each = share * 4 * N * at.positions * groups * (C * out + out * inputs)
    return Work(sample_flops=_PRODUCTS * each, flops=_PRODUCTS * 8 * M * LEADING)


def _solving(problem: Problem, at: Layer, pairs: int) -> Work:
    """The equations of a pair and their gradients, as often as it takes to solve them."""
    groups, out, inputs = at.shape
    m = min(MATCHED, outputs_of_a_sample(problem))
    solved = _EVALUATIONS * pairs + AGAIN_STARTS * _EVALUATIONS * min(AGAIN, pairs)
    passes = _ANSWERED + m * _reach(problem, at)  # one forward, and m backward to the layer
    free = groups * out * min(at.positions, inputs)
    each = 2 * m * free * at.positions + 12 * m * free
    return Work(forwards=passes * solved / problem.count(), sample_flops=solved * each)


def _shifts(at: Layer, pairs: int) -> Work:
    groups, out, inputs = at.shape
    T, small = at.positions, min(at.positions, inputs)
    eigen = _EIGENVECTORS * small**3 if small > 1 else 0
    each = eigen + 8 * T * inputs * (small + out) + 8 * out * inputs
    return Work(sample_flops=pairs * groups * each)
