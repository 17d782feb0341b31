"""What all tests share: interrupts, a limit for oneDNN, and a stand-in for NVIDIA's libraries.

A shell that starts the tests in the background ignores interrupts, and every process that the tests
start would inherit that; so the default is restored.

torch 2.15.0 alone, without Ronde, was seen to die of SIGILL on a virtual Xeon with AMX when it
multiplied bfloat16 matrices of 32 by 32 or more. oneDNN, which it uses for that, leaves AMX alone
when it is told to; whoever sets the variable decides.
"""

import os
import signal

import pytest

import standin

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture(scope="session")
def standin_gpu():
    """The library that plays NVIDIA's driver and NCCL over host memory, from this checkout."""
    return standin.library()
