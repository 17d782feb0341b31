"""Prints this Python's version and installed packages, one name and value per line.

Only the packages' own metadata is read: importing a framework takes seconds. The agent runs this
with `-c`, so that it works where Ronde itself is not installed.
"""

import sys

# Drop the agent's working directory from the search path.
sys.path[:] = [path for path in sys.path if path]

import importlib.metadata  # noqa: E402  after the search path is set

# Some packages are published under several names.
NAMES = {
    "ronde": ["ronde"],
    "horovod": ["horovod"],
    "torch": ["torch"],
    "tensorflow": ["tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-rocm"],
    "keras": ["keras"],
    "jax": ["jax"],
    "mxnet": ["mxnet", "mxnet-cu112", "mxnet-cu110", "mxnet-mkl"],
    "lightning": ["lightning", "pytorch-lightning"],
    "numpy": ["numpy"],
}


def version(names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


print("executable", sys.executable)
print("python", sys.version.split()[0])
for package, names in NAMES.items():
    found = version(names)
    if found:
        print(package, found)
