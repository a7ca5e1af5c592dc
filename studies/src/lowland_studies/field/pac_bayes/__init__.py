"""A bound that is not vacuous (Dziugaite & Roy, UAI 2017), as its posterior is trained for it."""
