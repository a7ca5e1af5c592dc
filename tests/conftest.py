"""One thread for every test, and for every process that a test starts.

The models are tiny, so more threads only wait for each other; beside another process that does
the same they wait for very long.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for subprocesses
