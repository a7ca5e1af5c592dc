"""Published figures, made again and judged."""
