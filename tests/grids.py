"""A grid that several tests sweep."""

# Eight stacks of two networks, each some tenths of a second.
GRID = """
data = "xor"
network = "2-8-8-2"
per_class = 50
test_per_class = 30
stop_loss = 0.05
max_epochs = 20
n_sharp = 5

[[grid]]
batch_size = [10, 12, 15, 20, 25, 30, 40, 50]
seed = "0..1"
"""
RUNS = 16
