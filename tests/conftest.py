"""What all tests share: the signals of a terminal, even if a shell started them in the background.

Such a shell has interrupts ignored, and everything that tests start would inherit that.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
