"""Are critical points of high loss saddles? Dauphin et al. (2014), Choromanska et al. (2015)."""
