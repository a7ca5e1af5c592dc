"""Baldassi et al., Subdominant dense clusters (2015); Unreasonable effectiveness (2016)."""
