"""Matrices whose spectrum is known, and which an algorithm sees only by products."""

import torch


class Hidden:
    """A matrix of which an algorithm sees products alone, and which counts them."""

    def __init__(self, matrix, slices=None):
        self.matrix, self.size = matrix, len(matrix)
        self.dtype, self.device = matrix.dtype, matrix.device
        self.matvecs, self.widths = 0, []
        if slices:
            self.slices = slices

    def __matmul__(self, V):
        self.widths.append(V.shape[1] if V.ndim > 1 else 1)
        self.matvecs += self.widths[-1]
        return self.matrix @ V


def planted(values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q
    return (Q * values) @ Q.T
