"""Wider networks (Neyshabur et al. 2015); expected sharpness against KL (Neyshabur et al. 2017)."""
