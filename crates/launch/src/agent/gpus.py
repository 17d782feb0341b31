"""Prints the driver and the NCCL that ranks of this Python would use, as JSON; null without Ronde.

The agent runs this with `-c`. The GPUs are listed only if there is no `nvidia-smi`, which knows
more, and spares this process from initializing the driver.
"""

import json
import shutil
import sys

# Drop the agent's working directory from the search path.
sys.path[:] = [path for path in sys.path if path]

try:
    from horovod import _native
except ImportError:
    print("null")
else:
    print(json.dumps(_native.gpu_software(shutil.which("nvidia-smi") is None)))
