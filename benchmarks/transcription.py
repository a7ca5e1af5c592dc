"""The duality as Feng & Tu's Methods describe it, transcribed without a thought for speed.

Loops over samples, 900 rows of autograd on one kept graph; the only liberty is a symmetric
eigensolver where a general one would return vectors that are not orthogonal.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import Workload

Found = dict[str, Tensor]


def decomposition(w: Workload, n_sharp: int) -> Found:
    """Eq. 6-12 for the measured layer, pair by pair."""
    model, layer = w.model, dict(w.model.named_modules())[w.layer]
    assert isinstance(layer, nn.Linear)
    W = layer.weight
    X_test, y_test = w.test

    loss = F.cross_entropy(model(w.X), w.y)
    (gradient,) = torch.autograd.grad(loss, W, create_graph=True)
    rows = [torch.autograd.grad(g, W, retain_graph=True)[0].flatten() for g in gradient.flatten()]
    values, E = torch.linalg.eigh(torch.stack(rows))

    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda m, args, out: seen.append(args[0][0]))
    components_w, components_g, changes = [], [], []
    with torch.no_grad():
        for x_new, y_new in zip(X_test, y_test, strict=True):
            distances = (w.X - x_new).flatten(1).norm(dim=1)  # to all training data, as it says
            distances[w.y != y_new] = torch.inf
            partner = distances.argmin()
            l_new = F.cross_entropy(model(x_new[None]), y_new[None])
            l_old = F.cross_entropy(model(w.X[partner][None]), w.y[partner][None])
            x, dx = seen[-1], seen[-2] - seen[-1]
            dW = (torch.outer(W @ dx, x) / x.dot(x)).flatten()  # Eq. 6
            dl = l_new - l_old
            g = dl * dW / dW.dot(dW)  # Eq. 7
            components_w.append(E.T @ dW)
            components_g.append(E.T @ g)
            changes.append(dl)
    handle.remove()
    dw, g, dl = (torch.stack(part) for part in (components_w, components_g, changes))
    sigma_w, sigma_g = dw.std(0, correction=0), g.std(0, correction=0)
    contribution = ((g - g.mean(0)) * (dw - dw.mean(0))).mean(0)  # c sigma_g sigma_w
    order = sigma_g.argsort(descending=True)
    return {
        "sigma_g": sigma_g[order],
        "sigma_w": sigma_w[order],
        "contribution": contribution[order],
        "eigenvalue": values[order],
        "paired_gap": dl.mean(),
        "eq9": (contribution + g.mean(0) * dw.mean(0)).sum(),
        "eq11": contribution.sum(),
        "sharp": contribution[order][:n_sharp].sum(),
        "flat": contribution[order][n_sharp:].sum(),
        "total_w": sigma_w.square().sum(),
    }
