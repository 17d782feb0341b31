"""A rank of `horovod.run`: fetches the function, calls it, and delivers the result.

The launcher starts it as `python -m horovod.runner.run_task`. An exception is delivered too, and
then ends this process as it would end a script.
"""

from __future__ import annotations

import io
import linecache
import pickle
import socket
import sys
import traceback
from typing import NoReturn

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

from horovod import _native
from horovod.common import environment
from horovod.runner.failure import describe

VALUE, ERROR = b"v", b"e"


def main() -> None:
    """Runs the remote call of this rank."""
    path, cells, function = cloudpickle.loads(_native.fetch_function())
    # Use the caller's search path: a notebook may have added folders.
    sys.path.extend(folder for folder in path if folder not in sys.path)
    # Tracebacks quote the lines of a notebook's cells, which are in no file.
    linecache.cache.update(cells)
    try:
        call, args, kwargs = pickle.loads(function)
        value = call(*args, **kwargs)
        result = _pickled(VALUE, value)
    except Exception as error:
        _fail(error)
    _native.deliver_result(result)


def _fail(error: Exception) -> NoReturn:
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    error = error.with_traceback(inner)
    _native.deliver_result(ERROR + describe(error, _who()))
    shown = "".join(traceback.format_exception(type(error), error, inner))
    # Ends this process like an exception of a script, and shows the frames of the function only.
    sys.excepthook = lambda *_: print(shown, end="", file=sys.stderr, flush=True)
    raise error


def _who() -> str:
    """This rank and its host, as the launcher names them."""
    if environment.is_launched():
        host = environment.host() or "localhost"
        return f"rank {environment.rank()} ({host}, slot {environment.slot()})"
    launched = _native.launched()
    return f"rank {launched[1] if launched else 0} ({socket.gethostname()})"


def _pickled(tag: bytes, value: object) -> bytes:
    buffer = io.BytesIO()
    buffer.write(tag)
    cloudpickle.dump(value, buffer)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
