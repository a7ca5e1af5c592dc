"""Does SGD leave minima whose Frobenius norm is above a bound? Wu et al. (2022), Wu & Su (2023)."""
