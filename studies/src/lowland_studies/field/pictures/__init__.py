"""Do drawn surfaces tell? Li et al., "Visualizing the loss landscape of neural nets" (2018)."""
