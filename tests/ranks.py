"""Two gloo ranks as two processes, by torchrun: a test's own file is what each of them runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def run_both(script: str, out: Path) -> str:
    """Run the file as two ranks, which leave their files in `out`; what they printed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            script,
        ],
        env={
            **os.environ,
            "LOWLAND_TEST_OUT": str(out),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def be_rank(work: Callable[[int, Path], None]) -> None:
    """Do a rank's work, given its number and where to leave files, and end the process.

    The work makes the process group, by itself or through a framework.

    It ends at once: a thread of gloo that lets go of its last reduction while the interpreter shuts
    down aborts the process, also after `destroy_process_group` and without Lowland (torch 2.13).
    """
    torch.set_num_threads(1)
    work(int(os.environ["RANK"]), Path(os.environ["LOWLAND_TEST_OUT"]))
    torch.distributed.barrier()  # nobody leaves while another still talks to it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
