"""Dinh, Pascanu, Bengio & Bengio, Sharp minima can generalize for deep nets (ICML 2017)."""
