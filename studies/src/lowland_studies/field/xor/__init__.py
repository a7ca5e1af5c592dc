"""Wen, Li & Ma, Sharpness minimization algorithms do not only minimize sharpness (NeurIPS 2023)."""
