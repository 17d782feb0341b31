"""Restores the default handling of SIGINT if a shell started the tests in the background.

Such a shell ignores interrupts, and every process that the tests start would inherit that.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
