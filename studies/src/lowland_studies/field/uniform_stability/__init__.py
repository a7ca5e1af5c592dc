"""Uniform stability (Hardt, Recht & Singer, ICML 2016): trainings that differ in one sample."""
