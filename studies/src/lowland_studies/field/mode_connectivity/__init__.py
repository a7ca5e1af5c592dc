"""Are independently trained minima apart? Straight lines, curves, and lines after alignment."""
