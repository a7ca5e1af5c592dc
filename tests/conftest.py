"""What every test, and every process that a test starts, can rely on.

One thread: the models are tiny, so more threads only wait for each other; beside another process
that does the same they wait for very long. And interrupts that arrive: a shell starts its
background jobs with SIGINT ignored, which all their children inherit.
"""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for subprocesses
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
