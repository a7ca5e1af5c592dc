"""What is measured: each row of the table as data, with how its results are checked."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import algorithm1
import loops
import outputs
import peers
import surfaces
import torch
import transcription
import workloads
from algorithm1 import Sharpness
from peers import Contestant, Pairs, one_by_one
from torch import Tensor
from workloads import Workload

import lowland as ll
from lowland.curvature import diagonal
from lowland.measures.shared.balancing import balance


@dataclass(frozen=True)
class Row:
    """One piece of work, ours and the peers', and the ratio that ours is to reach.

    ``error`` says how wrong a result is (ours is given for results that have no other oracle). A
    peer whose error is above ``tolerance`` did other work and is not compared with.
    """

    name: str
    work: str
    workload: Callable[[], Workload]
    ours: Contestant
    peers: dict[str, Contestant]
    error: Callable[[Workload, Any, Any], float]
    error_is: str
    tolerance: float
    floor: float
    # speedup: times faster than the best peer; gradients: at most so many gradients per product
    unit: Literal["speedup", "gradients"] = "speedup"
    against: tuple[str, ...] = ()  # the peers that count for the floor; all of them if empty
    per: int = 1  # products in one run
    repeats: int = 7
    gibibytes: float | None = None  # our process may need at most so much memory
    note: str = ""
    missed: str = ""  # why, where the floor is known not to be reached


# Ours --------------------------------------------------------------------------------------------
# The Problem, which checks model and data, is made before the clock runs, as the peers' own checks
# are switched off; every operator is made anew within the timed work.


def our_layer_hessian(w: Workload) -> Callable[[], Tensor]:
    p = w.problem()
    return lambda: ll.layer_hessian(p, w.layer)


def our_eigenpairs(k: int, tol: float) -> Contestant:
    def prepare(w: Workload) -> Callable[[], Pairs]:
        p = w.problem()

        def run() -> Pairs:
            H = ll.hessian(p) if w.layer is None else ll.layer_operator(p, w.layer)
            found = ll.eigsh(H, k=k, tol=tol)
            return found.values, found.vectors

        return run

    return prepare


def our_products(count: int) -> Contestant:
    def prepare(w: Workload) -> Callable[[], Tensor]:
        p = w.problem()
        return lambda: one_by_one(ll.hessian(p).__matmul__, w, count)

    return prepare


def our_blocks(count: int) -> Contestant:
    """Products with ``count`` columns at once, of an operator that was used before."""

    def prepare(w: Workload) -> Callable[[], Tensor]:
        H = ll.hessian(w.problem())
        H @ peers.vectors(w, count)[:, 0]  # graphs are kept from here on
        return lambda: H @ peers.vectors(w, count)

    return prepare


def our_diagonal(w: Workload) -> Callable[[], dict[str, Tensor]]:
    p = w.problem()
    return lambda: ll.diagonal(p)


def our_trace(**options: Any) -> Contestant:
    def prepare(w: Workload) -> Callable[[], float]:
        p = w.problem()
        return lambda: ll.trace(ll.hessian(p), **options).value

    return prepare


def our_duality(w: Workload) -> Callable[[], transcription.Found]:
    p = w.problem()
    names = ("sigma_g", "sigma_w", "contribution", "eigenvalue")
    sums = ("paired_gap", "eq9", "eq11", "sharp", "flat", "total_w")

    def run() -> transcription.Found:
        found = ll.duality(p, w.layer)
        return {n: torch.as_tensor(getattr(found, n), dtype=torch.float64) for n in (*names, *sums)}

    return run


def our_normalized(w: Workload) -> Callable[[], Sharpness]:
    p = w.problem()

    def run() -> Sharpness:
        h = diagonal(p.with_loss("normalized_cross_entropy"))
        matrices = [(h[n].clamp_min(0), m.detach().square()) for n, m in w.weights.items()]
        found = [balance(a, b) for a, b in matrices]
        return Sharpness(sum(f.value for f in found), matrices)

    return run


def our_measures(w: Workload) -> Callable[[], ll.Measurements]:
    p = w.problem()
    return lambda: ll.measure(p)


def our_curvature(w: Workload) -> Callable[[], Pairs]:
    """All kinds of curvature of one network, one after the other; the eigenpairs are checked."""
    p = w.problem()

    def run() -> Pairs:
        H = ll.hessian(p)
        ll.trace(H)
        ll.diagonal(p)
        ll.measure(p, ["largest_eigenvalue", "effective_dimension", "frobenius_norm"])
        pairs = ll.eigsh(H, k=3, tol=1e-2)
        return pairs.values, pairs.vectors

    return run


def transcribed(w: Workload) -> Callable[[], transcription.Found]:
    return lambda: transcription.decomposition(w, n_sharp=10)


# Errors ------------------------------------------------------------------------------------------


def dense_error(w: Workload, result: Tensor, _: Any) -> float:
    exact = _dense_oracle(w)
    return _relative((result - exact).abs().max(), exact.abs().max())


def products_error(w: Workload, result: Tensor, _: Any) -> float:
    exact = _products_oracle(w, result.shape[1])
    return _relative((result[:, : exact.shape[1]] - exact).norm(), exact.norm())


def diagonal_error(w: Workload, result: dict[str, Tensor], _: Any) -> float:
    found = torch.cat([result[name].flatten().double() for name in w.weights])
    places, exact = _diagonal_oracle(w)
    return _relative((found[places] - exact).abs().max(), exact.abs().max())


def eigenpairs_error(w: Workload, result: Pairs, ours: Pairs | None) -> float:
    """The largest residual over its eigenvalue, or half the disagreement about an eigenvalue."""
    values, vectors = result[0].double(), result[1].float()
    vectors = vectors / vectors.norm(dim=0)
    residuals = (w.products(vectors) - vectors * values).norm(dim=0) / values.abs()
    apart = (values - (ours or result)[0].double()).abs() / values.abs()
    return max(residuals.max().item(), apart.max().item() / 2)


def trace_error(w: Workload, result: float, _: Any) -> float:
    exact = _trace_oracle(w)
    return _relative(torch.tensor(result - exact).abs(), torch.tensor(exact).abs())


def duality_error(w: Workload, result: transcription.Found, _: Any) -> float:
    """The largest difference from the transcription in any array or sum, over its largest entry."""
    exact = _duality_oracle(w)
    return max(
        _relative((result[name].double() - value).abs().max(), value.abs().max())
        for name, value in exact.items()
    )


def sharpness_error(w: Workload, result: Sharpness, _: Any) -> float:
    """How far the value is above the optimum for its own diagonal, by quasi-Newton steps."""
    best = sum(algorithm1.optimum(h, w2) for h, w2 in result.matrices)
    return abs(result.value - best) / best


# The first is infinite; 24 products leave the others open here, and their rows say so.
_WITHOUT_VALUE = {"condition_number", "effective_dimension", "negative_share"}


def measures_error(w: Workload, result: ll.Measurements, _: Any) -> float:
    """The share of measures without a value, beside those that cannot have one here."""
    missing = {n for n, row in result.items() if row.value is None} - _WITHOUT_VALUE
    return len(missing) / len(result)


@cache
def _duality_oracle(w: Workload) -> transcription.Found:
    return transcription.decomposition(w, n_sharp=10)


def _relative(error: Tensor, scale: Tensor) -> float:
    return (error / scale).item()


@cache
def _dense_oracle(w: Workload) -> Tensor:
    return w.double.products(torch.eye(w.size, dtype=torch.float64))


@cache
def _products_oracle(w: Workload, count: int) -> Tensor:
    return w.double.products(peers.vectors(w, count)[:, :2].double())


@cache
def _diagonal_oracle(w: Workload) -> tuple[Tensor, Tensor]:
    """Entries at 32 places, a few in every parameter, from products in float64."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([p.numel() for p in w.weights.values()])
    each = -(-32 // len(sizes))
    places = torch.cat(
        [
            start + torch.randint(int(size), (each,), generator=generator)
            for start, size in zip(sizes.cumsum(0) - sizes, sizes, strict=True)
        ]
    )
    units = torch.zeros(w.size, len(places), dtype=torch.float64)
    units[places, range(len(places))] = 1
    return places, w.double.products(units)[places, range(len(places))]


@cache
def _trace_oracle(w: Workload) -> float:
    """BackPACK's Hessian diagonal in float64, which is exact for these networks."""
    return peers.backpack_trace(chunk=50)(w.double)()


# Rows --------------------------------------------------------------------------------------------

_ERROR_OF_ESTIMATE = 4 * peers.STANDARD_ERROR  # four standard errors

_TRACES: dict[str, Contestant] = {
    "curvlinops Hutchinson": peers.curvlinops_hutchinson,
    "curvlinops Hutch++": peers.curvlinops_hutchpp,
    "curvlinops XTrace": peers.curvlinops_xtrace,
    "hessian-eigenthings Hutchinson": peers.eigenthings_hutchinson,
    "hessian-eigenthings Hutch++": peers.eigenthings_hutchpp,
    "PyHessian Hutchinson": peers.pyhessian_trace,
}

ROWS = [
    Row(
        name="layer",
        work="exact 900 x 900 layer Hessian",
        workload=workloads.small_mlp_layer,
        ours=our_layer_hessian,
        peers={"curvlinops `H @ I`": peers.curvlinops_dense},
        error=dense_error,
        error_is="largest difference from float64 autograd over the largest entry",
        tolerance=1e-5,
        floor=50,
    ),
    Row(
        name="layer-rows",
        work="exact 900 x 900 layer Hessian",
        workload=workloads.small_mlp_layer,
        ours=our_layer_hessian,
        peers={"900 autograd rows on one kept graph": peers.autograd_rows},
        error=dense_error,
        error_is="largest difference from float64 autograd over the largest entry",
        tolerance=1e-5,
        floor=15,
    ),
    Row(
        name="duality",
        work="the whole decomposition of the gap, from trained weights",
        workload=workloads.paper,
        ours=our_duality,
        peers={"the paper's Methods, transcribed": transcribed},
        error=duality_error,
        error_is="largest difference from the transcription over the largest entry",
        tolerance=1e-8,
        floor=50,
        repeats=5,
        note="900 autograd rows and loops over samples; ours also makes the bootstrap intervals",
        missed="the symmetric eigensolver, which both call, and the exact block alone take half of "
        "our time",
    ),
    Row(
        name="normalized",
        work="normalized sharpness",
        workload=workloads.wide_mlp,
        ours=our_normalized,
        peers={
            f"Algorithm 1 as printed, {n:,} samples": algorithm1.sharpness(n) for n in (100, 1000)
        },
        error=sharpness_error,
        error_is="excess over the optimum for the diagonal that was used",
        tolerance=1e-4,
        floor=100,
        repeats=3,
        note="The paper does not say how many samples. Their noise, clipped at zero, makes the "
        "algorithm's value several times too large. SGD has the best rate that is safe",
        missed="the exact diagonal takes nine backward passes; against 1,000 samples it is reached",
    ),
    Row(
        name="measures",
        work="all measures that need no training",
        workload=workloads.wide_mlp,
        ours=our_measures,
        peers={},
        error=measures_error,
        error_is="share of measures without a value",
        tolerance=0,
        floor=200,
        unit="gradients",
        repeats=3,
        missed="counted in matrix products alone it is 160 gradients: 24 products of the Hessian "
        "36 and 8 of the GGN 9, the 103 of the split 34, some 140 forward passes that share their "
        "first layer 43, 27 gradients, exact diagonals 10; the rest is memory: bases of Lanczos, "
        "Jacobians, noise, and the prices of the plan",
    ),
    *(
        Row(
            name=f"product-{name}",
            work="twenty products one by one, the operator made anew",
            workload=workload,
            ours=our_products(20),
            peers={
                "curvlinops": peers.curvlinops_products(20),
                "hessian-eigenthings": peers.eigenthings_products(20),
                "PyHessian": peers.pyhessian_products(20),
            },
            error=products_error,
            error_is="difference from float64 autograd over the norm",
            tolerance=1e-5,
            floor=1,
            per=20,
            missed="both read all images twice a product, which sets the time of either: for one "
            "vector ours takes no fewer products of matrices",
        )
        for name, workload in (("mlp", workloads.small_mlp), ("mlp256", workloads.middle_mlp))
    ),
    *(
        Row(
            name=f"block-{name}",
            work="a product with 16 columns at once",
            workload=workload,
            ours=our_blocks(16),
            peers={},
            error=products_error,
            error_is="difference from float64 autograd over the norm, of two columns",
            tolerance=1e-5,
            floor=floor,
            unit="gradients",
            per=16,
            repeats=repeats,
            missed=missed,
        )
        for name, workload, floor, repeats, missed in (
            ("mlp", workloads.small_mlp, 0.7, 7, ""),
            (
                "mlp256",
                workloads.middle_mlp,
                1.3,
                7,
                "counted multiplications are 1.34 times a gradient's: two products of matrices "
                "for two in the first layer, six for three in the others",
            ),
            (
                "resnet",
                workloads.resnet,
                1.3,
                3,
                "a product with the Hessian takes six convolutions for the three of a gradient: "
                "2.0 at equal speed",
            ),
        )
    ),
    *(
        Row(
            name=f"diagonal-{name}",
            work="exact whole-network diagonal",
            workload=workload,
            ours=our_diagonal,
            peers={
                "BackPACK DiagGGNExact": peers.diag_ggn(chunk),
                "BackPACK DiagHessian": peers.diag_hessian(chunk),
            },
            error=diagonal_error,
            error_is="largest difference from float64 autograd at 32 places over the largest entry",
            tolerance=1e-4,
            floor=1,
        )
        for name, workload, chunk in (
            ("mlp", workloads.small_mlp, 4000),
            ("lenet", workloads.lenet, 100),
        )
    ),
    Row(
        name="trace",
        work="whole-network trace, piecewise linear: ours exact, peers to 1 % standard error",
        workload=workloads.small_mlp,
        ours=our_trace(),
        peers={**_TRACES, "BackPACK DiagHessian, summed (exact)": peers.backpack_trace(1000)},
        against=tuple(_TRACES),
        error=trace_error,
        error_is="difference from the exact trace",
        tolerance=_ERROR_OF_ESTIMATE,
        floor=10,
        note="BackPACK is exact as well and has no standard error, so it does not set the floor",
    ),
    *(
        Row(
            name=f"surface-{name}{'-loop' * (floor == 1)}",
            work=f"the loss at {steps} x {steps} points of a plane, train loss and error",
            workload=workload,
            ours=surfaces.ours(steps),
            peers={
                "a loop that does the least for a point": surfaces.loop(steps),
                **(
                    {
                        "loss-landscapes 3.0.6": surfaces.loss_landscapes(steps),
                        "Landscaper 1.3.1": surfaces.landscaper(steps),
                    }
                    if floor > 1
                    else {}
                ),
            },
            against=(
                ("loss-landscapes 3.0.6", "Landscaper 1.3.1")
                if floor > 1
                else ("a loop that does the least for a point",)
            ),
            error=surfaces.error,
            error_is="largest relative difference from float64 at 9 points",
            tolerance=1e-5,
            floor=floor,
            repeats=3 if name == "mlp" else 1,
            gibibytes=2,
            note="Only ours has the error as well"
            + (
                "; 11 x 11 points, as 51 x 51 would take the peers half an hour each, and the time "
                "of a point does not depend on their number"
                if name == "resnet"
                else ""
            ),
            missed="convolutions at the processor's peak take a fifth of the peers' time"
            if name == "resnet" and floor > 1
            else "",
        )
        for name, workload, steps in (
            ("mlp", partial(workloads.small_mlp, 1000), 51),
            ("resnet", partial(workloads.resnet, 1000), 11),
        )
        for floor in (5, 1)
    ),
    Row(
        name="training",
        work="fifty networks, two epochs of SGD in batches of 25, each with its own order of data",
        workload=workloads.small_mlp,
        ours=loops.ours,
        peers={
            "our stack, without the compiled loop": loops.stacked,
            "one after the other": loops.one_after_the_other,
            "vmap of the module": loops.plain_vmap,
        },
        against=("one after the other",),
        error=loops.losses_error,
        error_is="largest relative difference of the final losses from float64",
        tolerance=1e-3,
        floor=8,
        repeats=3,
        note="neither our own stack nor plain vmap sets the floor",
    ),
    Row(
        name="product-resnet",
        work="twenty products one by one, the operator made anew",
        workload=workloads.resnet,
        ours=our_products(20),
        peers={"PyHessian": peers.pyhessian_products(20)},
        error=products_error,
        error_is="difference from float64 autograd over the norm",
        tolerance=1e-4,
        floor=2.0,
        unit="gradients",
        per=20,
        repeats=3,
    ),
    Row(
        name="output-dual",
        work="output-level dual shifts of 500 pairs in each of ten layers, per layer",
        workload=workloads.resnet_pairs,
        ours=outputs.ours,
        peers={"SciPy trust-constr, ten pairs in one layer": outputs.trust_constr()},
        error=outputs.unsolved,
        error_is="share of pairs without a solution, of all layers but the first",
        tolerance=0.01,
        floor=100,
        unit="gradients",
        per=10,
        repeats=1,
        note="SciPy's is for a fiftieth of the pairs in a tenth of the layers. The first layer "
        "takes four times the mean: an evaluation goes back through the whole network nine times, "
        "and pairs that are not solved (6 %) are tried from five starts",
    ),
    Row(
        name="million",
        work="top 50 eigenpairs to residual 1e-3 of the million-weight layer",
        workload=workloads.million_weight_layer,
        ours=our_eigenpairs(50, 1e-3),
        peers={"curvlinops + SciPy eigsh": peers.curvlinops_eigsh(50, 1e-3)},
        error=eigenpairs_error,
        error_is="largest residual over its eigenvalue",
        tolerance=1e-3,
        floor=3,
        repeats=3,
        gibibytes=4,
    ),
    Row(
        name="ten-million",
        work="trace, diagonal, spectral measures and three eigenpairs of the whole Hessian",
        workload=workloads.ten_million,
        ours=our_curvature,
        peers={},
        error=eigenpairs_error,
        error_is="largest residual over its eigenvalue",
        tolerance=2e-2,
        floor=400,
        unit="gradients",
        repeats=1,
        gibibytes=4,
        note="What is held is the memory: half of the budget of 2 GiB is for vectors",
    ),
    Row(
        name="top10",
        work="top 10 eigenpairs to residual 1e-3",
        workload=workloads.resnet,
        ours=our_eigenpairs(10, 1e-3),
        peers={
            "curvlinops + SciPy eigsh": peers.curvlinops_eigsh(10, 1e-3),
            "hessian-eigenthings Lanczos": peers.eigenthings_eigenpairs(10, 1e-3),
            "PyHessian, 10 products each": peers.pyhessian_eigenpairs(10, 10),
        },
        error=eigenpairs_error,
        error_is="largest residual over its eigenvalue",
        tolerance=1e-3,
        floor=2,
        repeats=3,
    ),
    Row(
        name="trace-smooth",
        work="whole-network trace to 1 % standard error, smooth network",
        workload=workloads.smooth_mlp,
        ours=our_trace(rtol=peers.STANDARD_ERROR),
        peers={**_TRACES, "BackPACK DiagHessian, summed (exact)": peers.backpack_trace(50)},
        error=trace_error,
        error_is="difference from the exact trace",
        tolerance=_ERROR_OF_ESTIMATE,
        floor=2,
        repeats=3,
    ),
]
