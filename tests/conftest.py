"""What all tests share: interrupts, and a stand-in for NVIDIA's libraries.

A shell that starts the tests in the background ignores interrupts, and every process that the tests
start would inherit that; so the default is restored.
"""

import signal

import pytest

import standin

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def standin_gpu():
    """The library that plays NVIDIA's driver and NCCL over host memory, from this checkout."""
    return standin.library()
