"""Embeddings: a table whose row is picked by a token is a matrix times a unit vector."""

from typing import Any

import torch
import torch.nn.functional as F

from lowland.curvature.uses.use import Product, use_of


@use_of("EmbeddingBackward0", 0)
def table(node: Any, shape: torch.Size) -> Product | None:
    """The table (tokens, features); the row of the padding token does not learn."""
    if node._saved_scale_grad_by_freq:
        return None  # its "gradient" is not one: it is divided by how often a token occurs
    tokens, features = shape
    meta = node._input_metadata[0]
    indices = node._saved_indices.flatten()
    x = F.one_hot(indices, tokens).to(meta.dtype)
    if node._saved_padding_idx < tokens:  # else there is none: -1, read as unsigned
        x[indices == node._saved_padding_idx] = 0
    return Product(
        "embedding",
        x[:, None, None],
        lambda a: a.reshape(len(a), -1, 1, 1, features),
        lambda w: w.T[None],
    )
