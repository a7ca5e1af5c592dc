"""The figures of Feng & Tu, "The activity-weight duality in feed forward neural networks" (2022).

Claims use the paper's letters: alpha and B are learning rate and batch size, beta the decay, s the
initial scale, d the dropout, N the training samples of a class and rho the share of random labels.
"""

from lowland_studies.feng_tu import equations, main_text, other_networks, supplement

__all__ = ["STUDIES"]

STUDIES = (
    *main_text.STUDIES,
    *supplement.STUDIES,
    *other_networks.STUDIES,
    *equations.STUDIES,
)
