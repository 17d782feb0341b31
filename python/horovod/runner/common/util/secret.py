"""Keys, and digests that only their holders can make."""

from __future__ import annotations

import hmac
import secrets

# Where Horovod's Spark tasks find their key.
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH_BYTES = 32


def make_secret_key() -> bytes:
    """A key that nobody can guess."""
    return secrets.token_bytes(32)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """The HMAC of a message, with SHA-256."""
    return hmac.digest(key, message, "sha256")


def check_digest(digest: bytes, key: bytes, message: bytes) -> bool:
    """Whether a digest is this message's; takes equally long for every wrong one."""
    return hmac.compare_digest(digest, compute_digest(key, message))
