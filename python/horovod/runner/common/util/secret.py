"""Keys, and digests that only holders of a key can compute."""

from __future__ import annotations

import hmac
import secrets

# The variable in which Horovod's Spark tasks find their key.
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH_BYTES = 32


def make_secret_key() -> bytes:
    """A random key."""
    return secrets.token_bytes(32)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """The HMAC of a message, with SHA-256."""
    return hmac.digest(key, message, "sha256")


def check_digest(digest: bytes, key: bytes, message: bytes) -> bool:
    """Whether a digest belongs to this message, compared in constant time."""
    return hmac.compare_digest(digest, compute_digest(key, message))
