"""Which optimiser ends in the flattest minima, for as many gradients, and is it the better one?"""
