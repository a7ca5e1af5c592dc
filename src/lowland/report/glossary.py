"""What each number means: a sentence, its formula and where it comes from.

Formulas are plain text with `_{...}` and `^{...}` for indices; the page sets those as small
letters. Definitions of measures are not here: they come with the results, from the measure itself.
"""

from dataclasses import dataclass

DUALITY = (
    "Feng & Tu, The activity-weight duality in feed forward neural networks, "
    "arXiv:2203.10736 (2022); Nat. Mach. Intell. 5, 908 (2023)"
)


@dataclass(frozen=True)
class Definition:
    """One number explained."""

    title: str
    text: str
    formula: str = ""
    source: str = ""
    typed: bool = False  # whether the formula is one of a measure's, see `mathml`


def _duality(title: str, text: str, formula: str, where: str) -> Definition:
    return Definition(title, text, formula, f"{DUALITY}, {where}.")


GLOSSARY: dict[str, Definition] = {
    # What came out of the training
    "train_loss": Definition(
        "Training loss",
        "The loss averaged over all training samples, at the analysed weights.",
        "L = ⟨l(w, x_{k})⟩ over training samples",
    ),
    "test_loss": Definition(
        "Test loss",
        "The same loss averaged over samples that the training never saw.",
        "L′ = ⟨l(w, x′_{k})⟩ over test samples",
    ),
    "train_error": Definition(
        "Training error", "The share of training samples that are classified wrongly."
    ),
    "test_error": Definition(
        "Test error", "The share of test samples that are classified wrongly."
    ),
    "gap": Definition(
        "Generalisation gap",
        "How much larger the loss is on unseen data than on the training data, each averaged over "
        "all of its samples.",
        "L′ − L",
    ),
    # The decomposition
    "paired_gap": _duality(
        "Paired gap",
        "Every test sample is paired with the nearest training sample of the same label; this is "
        "the mean difference of their losses, both for the test sample's target. It is what the "
        "decomposition explains, and it equals the gap only as far as the partners stand for the "
        "whole training set.",
        "ΔL = ⟨l(w, x′_{k}) − l(w, x_{k})⟩_{k}",
        "Sec. 3",
    ),
    "target_gap": Definition(
        "Gap of the targets",
        "What the partners' own targets add to the gap: no change of the weights stands for it. 0 "
        "where samples are paired within their label.",
        "⟨l(w, x_{k}, y′_{k}) − l(w, x_{k}, y_{k})⟩_{k}",
    ),
    "dual_gap": _duality(
        "Gap of the dual weights",
        "What the losses at the dual weights make of the gap. It is the paired gap where the dual "
        "is exact, and misses it where the layer's dual is a fit, or where data passes by. The "
        "training sample is asked for its test sample's target.",
        "⟨l(w + Δw_{k}, x_{k}) − l(w, x_{k})⟩_{k}",
        "Eq. 8",
    ),
    "explained": _duality(
        "Gap explained",
        "The gap that the layer's dual weights make, as a share of the paired gap: 100 % where all "
        "data passes through the layer and its dual is exact.",
        "⟨l(w + Δw_{k}, x_{k}) − l(w, x_{k})⟩_{k} / ΔL",
        "Eq. 8",
    ),
    "eq9": _duality(
        "Sum over directions, with means",
        "The paired gap written as a sum over the eigen-directions of the layer's Hessian. It "
        "must equal the paired gap up to rounding.",
        "ΔL = Σ_{n} [ c_{n} σ_{g,n} σ_{w,n} + μ_{g,n} μ_{w,n} ]",
        "Eq. 9",
    ),
    "eq11": _duality(
        "Sum over directions, without means",
        "The same sum without the product of the means, which the paper finds negligible. It is "
        "the sharp part plus the flat part.",
        "ΔL ≈ Σ_{n} c_{n} σ_{g,n} σ_{w,n}",
        "Eq. 11",
    ),
    "mean_term": _duality(
        "Mean term",
        "What the split into sharp and flat leaves out: the product of the mean gradient and the "
        "mean dual shift, summed over the directions.",
        "Σ_{n} μ_{g,n} μ_{w,n}",
        "Eq. 9",
    ),
    "sharp": _duality(
        "Sharp part",
        "The contribution of the few sharpest directions to the paired gap. In the paper it falls "
        "with larger learning rates and smaller batches (Sec. 4.1).",
        "ΔL_{s} = Σ_{n ≤ nₛ} c_{n} σ_{g,n} σ_{w,n}",
        "Sec. 4",
    ),
    "flat": _duality(
        "Flat part",
        "The contribution of all other directions to the paired gap. In the paper it falls with "
        "weight decay and smaller initial weights (Sec. 4.2).",
        "ΔL_{f} = Σ_{n > nₛ} c_{n} σ_{g,n} σ_{w,n}",
        "Sec. 4",
    ),
    "n_sharp": _duality(
        "Number of sharp directions",
        "Where the line between sharp and flat is drawn, in the order of decreasing σ_{g,n}.",
        "n_{s}",
        "Sec. 4",
    ),
    "directions": _duality(
        "Directions",
        "The dimension of the layer's weight space: one eigen-direction of its Hessian for each "
        "weight.",
        "M = outputs × inputs",
        "Sec. 3",
    ),
    "weight_norm": _duality(
        "Weight norm", "The Euclidean length of the layer's weights.", "‖w‖_{2}", "Fig. 2B"
    ),
    "total_w": _duality(
        "Total dual variance",
        "The size of the solution as the data see it: the variance of the dual weights, summed "
        "over all directions.",
        "‖σ_{w}‖^{2} = Σ_{n} σ_{w,n}^{2}",
        "Eq. 12",
    ),
    "total_w_data": _duality(
        "Total dual variance, from the data",
        "The same without any direction: from the weights and the covariance of the relative "
        "differences of the data, less the square of the mean shift, which the paper neglects.",
        "Σ C_{ii′} w_{ij} w_{i′j} − ‖⟨Δw_{k}⟩‖^{2},  C = ⟨Δx_{k} Δx_{k}^{T} / ‖x_{k}‖^{2}⟩",
        "Eq. 12",
    ),
    "unseen_sigma_g": Definition(
        "Bound on the rest",
        "Only leading directions were computed. No direction orthogonal to them has a σ_{g} above "
        "this: if it is below that of the last sharp direction, the sharp ones are certain.",
    ),
    "positions": Definition(
        "Positions",
        "How many vectors a sample shows the layer: 1 for a plain dense layer, the tokens of a "
        "sequence, the patches under a convolution's kernel.",
    ),
    "rank": Definition(
        "Rank",
        "How many independent combinations of its positions the dual of a sample rests on, on "
        "average, or how many outputs it moves independently; singular values that rounding makes "
        "meaningless are left out.",
    ),
    "dual": Definition(
        "Dual",
        "What the dual weights reproduce. Activity-level: what the layer puts out for the test "
        "sample, as Feng & Tu have it; exact where all data passes through the layer. "
        "Output-level: what the whole network puts out for it, with the least change of this "
        "layer's weight; it also exists where data goes around the layer, as in residual networks "
        "and Transformers.",
        "f(w + Δw_{k}, x_{k}) = f(w, x′_{k})",
    ),
    "excluded_share": Definition(
        "Share of the gap left out",
        "What the pairs without a dual carry, as a share of the paired gap.",
        "|Σ_{k left out} Δl_{k}| / |Σ_{k} Δl_{k}|",
    ),
    "solved": Definition(
        "Pairs solved", "The share of pairs whose outputs a change of this layer's weight reaches."
    ),
    "matched": Definition(
        "Outputs matched",
        "How many numbers of a sample's outputs the dual weights give it; class scores count "
        "without a shift that they have in common. Where the loss sees more, random combinations "
        "of them are matched.",
    ),
    "relative_norm": Definition(
        "Size of the dual shifts",
        "The mean length of the dual shifts, as a share of the weight's own.",
        "⟨‖Δw_{k}‖⟩_{k} / ‖w‖",
    ),
    "half_split": Definition(
        "Difference between halves",
        "How much the sharp share of the gap differs between two halves of the pairs.",
    ),
    "norm_spread": Definition(
        "Spread of norms over starts",
        "The dual shifts are of least norm only among those near by. Some pairs were solved again "
        "from random starts: the mean excess of their longest solution over the shortest.",
    ),
    "share_spread": Definition(
        "Spread of the sharp share over starts",
        "For the same pairs, the largest sharp share of the gap less the smallest.",
    ),
    "mean_residual": _duality(
        "Mean duality residual",
        "The same as the duality residual, averaged over pairs.",
        "⟨‖Δw_{k} x_{k} − w Δx_{k}‖ / ‖w Δx_{k}‖⟩_{k}",
        "Eq. 2",
    ),
    "basis": Definition(
        "Basis",
        "Whose eigenvectors the directions are: of the Hessian, of the generalised Gauss-Newton "
        "matrix (ggn) or of the empirical Fisher matrix, within this layer.",
    ),
    "route": Definition("Directions found by", "Which directions were computed, and how."),
    "gauge": Definition(
        "Gauge",
        "Hidden units can be rescaled without a change of the function, which moves the split. "
        "Given: as the model came. Balanced: every unit's incoming and outgoing weights have equal "
        "norms, so that no such rescaling can move the split.",
    ),
    "pairing": Definition("Pairs are", "Which samples are compared with which."),
    "degenerate": Definition(
        "Odd cases", "What was counted and left out of sums, or used with care, and why."
    ),
    "total_g": _duality(
        "Total gradient variance",
        "The sharpness of the solution in one number: the variance of the effective gradient, "
        "summed over all directions.",
        "T_{g} = Σ_{n} σ_{g,n}^{2}",
        "Fig. 2A",
    ),
    "pairs": _duality(
        "Pairs", "How many pairs of samples the averages ⟨…⟩_{k} run over.", "", "Sec. 3"
    ),
    "excluded": _duality(
        "Pairs left out",
        "Pairs that have no dual, because the layer's input is zero or the dual shift vanishes. "
        "They are in none of the sums.",
        "x_{k} = 0 or Δw_{k} = 0",
        "Eq. 6",
    ),
    "excluded_gap": Definition(
        "Gap of the pairs left out",
        "What the pairs without a dual carry, and the decomposition therefore cannot explain.",
        "Σ_{k left out} Δl_{k} / number of all pairs",
    ),
    "duality_residual": _duality(
        "Duality residual",
        "How far the dual weights are from reproducing the activities they stand for, at worst: "
        "zero up to rounding in a dense layer, larger where the dual is a least-squares fit.",
        "max_{k} ‖Δw_{k} x_{k} − w Δx_{k}‖ / ‖w Δx_{k}‖",
        "Eq. 2",
    ),
    "loss_defect": _duality(
        "Loss defect",
        "How far the loss at the dual weights is from the loss of the test sample that they "
        "replace, as a share of the mean change of loss; zero up to rounding where the duality is "
        "exact.",
        "⟨|l(w + Δw_{k}, x_{k}) − l(w, x′_{k})|⟩_{k} / ⟨|Δl_{k}|⟩_{k}",
        "Eq. 1",
    ),
    # Per direction
    "sigma_g": _duality(
        "Sharpness σ_{g,n}",
        "The standard deviation over samples of the effective gradient along direction n: how "
        "strongly the loss reacts there.",
        "σ_{g,n}^{2} = ⟨g_{n,k}^{2}⟩_{k} − μ_{g,n}^{2},  g_{k} = Δl_{k} Δw_{k} / ‖Δw_{k}‖^{2}",
        "Eqs. 7 and 9",
    ),
    "sigma_w": _duality(
        "Dual spread σ_{w,n}",
        "The standard deviation over samples of the dual weight shift along direction n: how far "
        "new data move the weights there.",
        "σ_{w,n}^{2} = ⟨Δw_{n,k}^{2}⟩_{k} − μ_{w,n}^{2}",
        "Eq. 9",
    ),
    "s_w": _duality(
        "Accumulated size S_{w,n}",
        "The dual spreads summed up to rank n, which smooths the noise of the single values.",
        "S_{w,n} = Σ_{i ≤ n} σ_{w,i}",
        "Sec. 4.1 and Fig. 3B",
    ),
    "c": _duality(
        "Correlation c_{n}",
        "How closely gradient and dual shift go together along direction n, over the pairs; zero "
        "where one of them does not vary beyond rounding.",
        "c_{n} = ⟨(g_{n,k} − μ_{g,n}) (Δw_{n,k} − μ_{w,n})⟩_{k} / (σ_{g,n} σ_{w,n})",
        "Eq. 10",
    ),
    "flatness": _duality(
        "Flatness F_{n}",
        "The width of the region along direction n in which the training loss stays below twice "
        "its value at the solution.",
        "L(w ± F_{n}^{±} e_{n}) = 2 L(w),  F_{n} = F_{n}^{+} + F_{n}^{−}",
        "Fig. S4",
    ),
    "gradient_square": _duality(
        "Square of the gradient",
        "The mean square of the gradient of single losses along direction n: the leading order of "
        "σ_{g,n}^{2}, and the diagonal of the empirical Fisher matrix.",
        "⟨(∂l_{k} / ∂w_{n})^{2}⟩_{k}",
        "Sec. 3 and Eq. 17",
    ),
    "finite": _duality(
        "One after the other",
        "The loss change when direction n joins those before it: these add up to the gap exactly.",
        "⟨l(w + Δw_{1…n,k}, x_{k}) − l(w + Δw_{1…n−1,k}, x_{k})⟩_{k}",
        "Eq. 13",
    ),
    "alone": _duality(
        "Each direction alone",
        "The loss change when the weights move along direction n only.",
        "⟨l(w + Δw_{n,k} e_{n}, x_{k}) − l(w, x_{k})⟩_{k}",
        "Eqs. 14 and 16",
    ),
    "linear": _duality(
        "Linear",
        "The same by the gradient at the solution.",
        "⟨(∂l_{k}/∂w_{n}) Δw_{n,k}⟩_{k}",
        "Eq. 17",
    ),
    "contribution": _duality(
        "Contribution of a direction",
        "What direction n adds to the paired gap: sharpness times dual spread times their "
        "correlation c_{n}.",
        "ΔL_{n} = c_{n} σ_{g,n} σ_{w,n}",
        "Eqs. 10 and 11",
    ),
    "eigenvalue": _duality(
        "Hessian eigenvalue H_{n}",
        "The second derivative of the mean training loss along direction n, within this layer.",
        "H_{n} = e_{n}^{T} (∇∇L) e_{n}",
        "Fig. 2A",
    ),
    # Of a comparison
    "change": Definition(
        "Change of the paired gap",
        "The second solution's paired gap less the first one's, on the same pairs.",
        "ΔL₂ − ΔL₁",
    ),
    "sharpness": _duality(
        "Due to sharpness",
        "How much of the change comes from other σ_{g,n}: the mean effect of exchanging them over "
        "all orders in which the three factors can be exchanged (Shapley value).",
        "Σ_{n} (σ′_{g,n} − σ_{g,n}) [ (c σ_{w} + c′ σ′_{w}) / 3 + (c σ′_{w} + c′ σ_{w}) / 6 ]_{n}",
        "Eq. 11",
    ),
    "size_part": _duality(
        "Due to size",
        "How much of the change comes from other σ_{w,n}, in the same way.",
        "",
        "Eq. 11",
    ),
    "correlation_part": _duality(
        "Due to correlation",
        "How much of the change comes from other c_{n}, in the same way.",
        "",
        "Eq. 11",
    ),
    "means_part": _duality(
        "Due to the means",
        "The change of the product of means, which belongs to neither factor.",
        "Σ_{n} μ′_{g,n} μ′_{w,n} − Σ_{n} μ_{g,n} μ_{w,n}",
        "Eq. 9",
    ),
    # How it was made
    "parameters": Definition(
        "Parameters",
        "How many numbers of the model were measured, and how many were frozen (requires_grad is "
        "False) and left alone.",
    ),
    "state": Definition(
        "Verdict",
        "Not trained: hardly better on the training data than the best constant prediction. A "
        "minimum: the training loss is at most 1 % of that prediction's, or its gradient is lost "
        "in the noise of the samples. Not a minimum yet: the gradient is beyond that, the loss "
        "curves downwards, or a training that did not reach its goal was still falling.",
    ),
    "constant_loss": Definition(
        "Loss of a constant prediction",
        "The least training loss of outputs that are the same for every sample.",
    ),
    "constant_error": Definition(
        "Error of a constant prediction",
        "The training error of those outputs: of always naming the most frequent class.",
    ),
    "gradient": Definition(
        "Gradient",
        "The norm of the gradient of the training loss, without the part along the weights that "
        "weight decay would hold in place.",
        "|G + a w|, a = max(0, −G·w / |w|²)",
    ),
    "gradient_noise": Definition(
        "Standard error of the gradient",
        "What chance leaves of a mean gradient in so many samples (at most 1,000 are counted). "
        "Below 0.45 of it the gradient counts as zero.",
        "√(tr S / N), S the covariance of the samples' gradients",
    ),
    "curvature": Definition(
        "Negative curvature",
        "The least eigenvalue of the layer's Hessian over the largest. At a minimum it is not "
        "negative, but for rounding.",
    ),
    "fall": Definition(
        "Last fall of the training loss",
        "By which share the training loss fell in the last tenth of the epochs of a training that "
        "did not reach its goal.",
    ),
    "layer": Definition(
        "Layer", "The layer whose weights are split into directions, and the shape of its weight."
    ),
    "train_samples": Definition("Training samples", "How many samples the training loss averages."),
    "test_samples": Definition("Test samples", "How many unseen samples the test loss averages."),
    "epochs": Definition("Epochs", "How often the training passed over all training samples."),
    "settings": Definition("Settings", "The settings of the training, as they were given."),
    "planned": Definition(
        "Plan",
        "What one gradient of the training loss takes on the machine that did the work, what was "
        "planned within the budget, cheap measures first, and what did not fit.",
    ),
    "subset": Definition(
        "Subset",
        "Where not everything fits the budget, some numbers are from a part of the training "
        "samples, drawn from each class in proportion. Their error includes that of the choice: "
        "it comes from the spread between four groups of the part.",
    ),
    "stopped": Definition("Ended early", "Why not all that was planned is here."),
    "seconds": Definition("Time", "Wall-clock time on the machine that did the work."),
    "seed": Definition(
        "Seed", "The start of the random numbers: the same seed gives the same results again."
    ),
    "cost": Definition(
        "Cost",
        "Wall-clock time and, of measures that take derivatives, the same in gradients of the "
        "training loss on the same machine: the unit that carries over to other machines. What "
        "measures share is counted where it was first needed.",
    ),
    "stderr": Definition(
        "Value ± standard error",
        "The number after ± is the standard error: of an estimate from random vectors, or of a "
        "mean over test samples that could have been others. Without ± there is none.",
    ),
    "limit": Definition(
        "Value and limit",
        "A check computes something whose true value is known and passes when it misses that by "
        "no more than the limit.",
    ),
    # The spectrum
    "hessian": Definition(
        "Hessian",
        "The matrix of second derivatives of the training loss by all weights. Its eigenvalues are "
        "the curvatures of the loss along as many directions.",
        "H = ∂^{2}L / ∂w∂w",
    ),
    "density": Definition(
        "Density of eigenvalues",
        "How large a share of all eigenvalues lies around a value, per unit. It is on a "
        "logarithmic scale, so that single eigenvalues among thousands can be seen.",
        "p(x) = mean over n of N(x; λ_{n}, bandwidth^{2})",
        "Ghorbani, Krishnan & Xiao, ICML 2019",
    ),
    "eigenvalue_residual": Definition(
        "Residual of an eigenvalue",
        "How far the vector found is from being an eigenvector. By Weyl's inequality the matrix "
        "has an eigenvalue within this distance of the value.",
        "|H v − λ v|, |v| = 1",
    ),
    "products": Definition(
        "Products",
        "How many times the Hessian was multiplied by a vector, each the work of about two "
        "gradients of the training loss.",
    ),
    # The landscape
    "landscape": Definition(
        "Loss landscape",
        "The loss at weights beside the analysed ones, along two directions of weight space. It "
        "is a cut through very many directions: what it shows is there, what it does not show may "
        "be elsewhere.",
        "L(w + x d_{1} + y d_{2})",
        "Li et al., Visualizing the loss landscape of neural nets, NeurIPS 2018",
    ),
    "filter_norm": Definition(
        "Filter-wise directions",
        "Each filter of a convolution, and each row of a dense layer, of a random direction has "
        "the length of the weights there. Without it, rescaling a network would flatten its "
        "picture.",
        "d_{i} ← d_{i} |w_{i}| / |d_{i}|",
        "Li et al., NeurIPS 2018",
    ),
    "quadratic": Definition(
        "Local quadratic",
        "What the loss would be if slope and curvature at the centre told everything. Its "
        "curvature is computed from the Hessian, not from the curve, and is compared with the "
        "curve's own.",
        "L + x d^{T}g + x^{2} d^{T}H d / 2",
    ),
    "barrier": Definition(
        "Barrier",
        "The most that the training loss rises on a way between two minima above the straight "
        "line between the losses at its ends.",
        "max_{t} L(t) − (1 − t) L(0) − t L(1)",
        "Frankle et al., ICML 2020",
    ),
    # The table of measures
    "among": Definition(
        "Among reference models",
        "The share of the reference models with a lower value than this one; a band where the "
        "value's error leaves it open. It is given only to networks of like size and loss.",
    ),
    "unchanged": Definition(
        "Unchanged by",
        "Rescalings that leave the measure as it is. L: one layer against the next, U: each hidden "
        "unit, neither of which changes the function; O: the last layer, which changes no "
        "decision. A measure that these do change compares only networks that were parametrised "
        "and trained alike.",
        "",
        "Dinh et al., ICML 2017; Tsuzuku et al., ICML 2020",
    ),
    "versions": Definition("Versions", "Of the programs that computed this."),
}
