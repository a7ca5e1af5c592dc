"""The gap and its parts: in all, by layer, by direction; and the training that led there."""

from typing import Any

import numpy as np

from lowland.figures.style import ABOVE, FLAT, NEUTRAL, SHARP, plain


def draw_split(split: Any, ax: Any) -> None:
    """The contributions of a decomposition added up over its directions, sharp and flat."""
    contribution = np.nan_to_num(split.contribution)
    total, n_sharp = np.cumsum(contribution), split.n_sharp
    rank = np.arange(1, len(total) + 1)
    for part, colour, words in (
        (slice(0, n_sharp), SHARP, f"sharp: {split.sharp:.3g}"),
        (slice(max(n_sharp - 1, 0), None), FLAT, f"flat: {split.flat:.3g}"),
    ):
        ax.plot(rank[part], total[part], color=colour, label=words)
        ax.fill_between(rank[part], 0, total[part], color=colour, alpha=0.15, linewidth=0)
    ax.axvline(n_sharp + 0.5, color=NEUTRAL, linestyle=":", linewidth=0.8)
    ax.axhline(0, color=NEUTRAL, linewidth=0.7)
    ax.set(xscale="log", xlabel="rank n, sharpest first", ylabel="gap from directions 1 to n")
    ax.legend(**ABOVE)


def draw_directions(split: Any, ax: Any) -> None:
    """Sharpness of each direction, over its rank."""
    sigma = np.where(split.sigma_g > 0, split.sigma_g, np.nan)
    rank, n_sharp = np.arange(1, len(sigma) + 1), split.n_sharp
    ax.plot(rank[:n_sharp], sigma[:n_sharp], "o", color=SHARP, markersize=3, label="sharp")
    ax.plot(rank[n_sharp:], sigma[n_sharp:], ".", color=FLAT, markersize=2, label="flat")
    ax.set(xscale="log", xlabel="rank n, sharpest first", ylabel=r"$\sigma_{g,n}$")
    if np.isfinite(sigma).any():
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(np.nanmin(sigma), np.nanmax(sigma) * 1e-10) / 2)
    ax.legend(**ABOVE)


def draw_layers(rows: Any, ax: Any) -> None:
    """The sharp and the flat part in each layer that has a useful dual."""
    useful = [(i, row) for i, row in enumerate(rows, 1) if row.trusted]
    places = [i for i, _ in useful]
    sharp, flat = (
        np.array([getattr(row, name) for _, row in useful]) for name in ("sharp", "flat")
    )
    ax.bar(places, sharp, color=SHARP, label="sharp part", width=0.6)
    same_side = np.where(np.sign(sharp) == np.sign(flat), sharp, 0.0)
    ax.bar(places, flat, bottom=same_side, color=FLAT, label="flat part", width=0.6)
    ax.axhline(0, color=NEUTRAL, linewidth=0.7)
    marked = useful[:: max(1, len(useful) // 12)]
    names = [plain(row.layer) for _, row in marked]
    turned = {"rotation": 45, "ha": "right"} if sum(map(len, names)) > 30 else {}
    ax.set_xticks([place for place, _ in marked], names, **turned)
    ax.set(xlabel="layer, from input to output", ylabel="part of the paired gap")
    ax.legend(**ABOVE)


def draw_training(loss: Any, ax: Any) -> None:
    """The training loss over epochs."""
    loss = np.asarray(loss, dtype=float)
    ax.semilogy(np.arange(1, len(loss) + 1), np.where(loss > 0, loss, np.nan), color=NEUTRAL)
    ax.set(xlabel="epoch", ylabel="training loss")
