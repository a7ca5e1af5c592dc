"""Double descent (Belkin et al. 2019, Nakkiran et al. 2020): the gap across width."""
