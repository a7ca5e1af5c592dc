"""Noise that knows the Hessian, rates and schedules that leave sharp minima, and stopping early."""
