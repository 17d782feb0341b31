"""The kinds of stores, where an estimator keeps its data and its runs.

Below a store's prefix are `intermediate_train_data` and its siblings, written by Spark and read by
the ranks, and `runs/RUN_ID` with the checkpoint and the logs of a run.
"""

from __future__ import annotations

import re
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]

from horovod.spark.common.filesystem import AbstractFilesystemStore, RemoteStore, Store

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "RemoteStore",
    "Store",
]

DBFS_PATH_FORMAT_ERROR = (
    "the path is not one of DBFS; it starts with `dbfs:/`, `/dbfs/`, `file:/dbfs/` or "
    "`file:///dbfs/`"
)


class FilesystemStore(AbstractFilesystemStore):
    """A store in any file system that fsspec knows: `s3://`, `gs://`, `abfs://`, this machine's.

    The package for the scheme must be installed on the driver and the executors, for example
    `s3fs`; Spark needs its own connector for the same scheme.

    Args:
        prefix_path: Folder of the store.
        *args: Further arguments of `AbstractFilesystemStore`.
        **kwargs: Further keyword arguments of `AbstractFilesystemStore`.
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(prefix_path, *args, **kwargs)

    def copy(self, lpath: str, rpath: str, recursive: bool = False, callback: Any = None) -> None:
        """Copy a local file or folder into the store.

        Args:
            lpath: Local path.
            rpath: Path in the store.
            recursive: Whether to copy a folder with all it holds (default: False).
            callback: A callback of fsspec, for progress (default: none).
        """
        options = {} if callback is None else {"callback": callback}
        self.fs.put(lpath, self.get_localized_path(rpath), recursive=recursive, **options)


class LocalStore(FilesystemStore):
    """A store in a folder that the driver and all executors see under the same path.

    Args:
        prefix_path: Folder of the store, as a path or `file://…`.
        *args: Further arguments of `AbstractFilesystemStore`.
        **kwargs: Further keyword arguments of `AbstractFilesystemStore`.
    """

    FS_PREFIX = "file://"

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether a path is one of this machine.

        Args:
            path: A path.

        Returns:
            Whether it is.
        """
        return "://" not in path or path.startswith(cls.FS_PREFIX)


class DBFSLocalStore(LocalStore):
    """A store in Databricks' file system, which every node sees below `/dbfs`.

    Args:
        prefix_path: Folder of the store: `dbfs:/…`, `/dbfs/…` or `file:///dbfs/…`.
        *args: Further arguments of `AbstractFilesystemStore`.
        **kwargs: Further keyword arguments of `AbstractFilesystemStore`.

    Raises:
        ValueError: If the path is not one of DBFS.
    """

    CHECKPOINT_FILENAME = "checkpoint.tf"

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.normalize_path(prefix_path), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether a path is one of DBFS.

        Args:
            path: A path.

        Returns:
            Whether it is.
        """
        return cls.matches_dbfs(path)

    @classmethod
    def matches_dbfs(cls, path: str) -> bool:
        """Return whether a path is one of DBFS.

        Args:
            path: A path.

        Returns:
            Whether it is.
        """
        return _DBFS.match(path) is not None

    @staticmethod
    def normalize_path(path: str) -> str:
        """Return a path of DBFS as this machine sees it.

        Args:
            path: `dbfs:/…`, `file:/dbfs/…`, `file:///dbfs/…` or `/dbfs/…`.

        Returns:
            The path below `/dbfs`.

        Raises:
            ValueError: If the path is not one of DBFS.
        """
        found = _DBFS.match(path)
        if found is None:
            raise ValueError(f"{DBFS_PATH_FORMAT_ERROR}; got `{path}`")
        return "/dbfs/" + path[found.end() :].lstrip("/")

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme.

        Args:
            path: A path of DBFS.

        Returns:
            The path as Spark expects it, `file:///dbfs/…`.
        """
        return self.FS_PREFIX + self.normalize_path(path)


class HDFSStore(AbstractFilesystemStore):
    """A store in HDFS. Executors need `libhdfs`, which comes with Hadoop, and its environment.

    Args:
        prefix_path: Folder of the store, such as `hdfs://namenode:8020/user/me`; without a host,
            that of Hadoop's configuration is used.
        host: Namenode (default: that of the path).
        port: Its port (default: that of the path).
        user: User of HDFS (default: that of the process).
        kerb_ticket: Path of a Kerberos ticket cache (default: None).
        driver: Accepted for compatibility with Horovod (default: `libhdfs`, the only one).
        extra_conf: Further settings of Hadoop (default: None).
        *args: Further arguments of `AbstractFilesystemStore`.
        **kwargs: Further keyword arguments of `AbstractFilesystemStore`.

    Raises:
        ValueError: If the path is not absolute.
    """

    FS_PREFIX = "hdfs://"
    URL_PATTERN = r"^(?P<scheme>hdfs://)?(?P<host>[^/:]+)?(?::(?P<port>\d+))?(?P<path>/.*)?$"

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        _, in_url, port_in_url, _, _ = self.parse_url(prefix_path)
        self._host, self._port = host or in_url, port or port_in_url
        self._options = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether a path is one of HDFS.

        Args:
            path: A path.

        Returns:
            Whether it is.
        """
        return path.startswith(cls.FS_PREFIX)

    @classmethod
    def parse_url(cls, url: str) -> tuple[str | None, str | None, int | None, str, int]:
        """Take a URL of HDFS apart.

        Args:
            url: Such as `hdfs://namenode:8020/user/me`.

        Returns:
            Scheme, host, port, path, and where the path starts in the URL.

        Raises:
            ValueError: If it has no absolute path.
        """
        found = re.match(cls.URL_PATTERN, url)
        if found is None or found["path"] is None:
            raise ValueError(
                f"`{url}` is not a path of HDFS; write it as hdfs://namenode:8020/user/me or "
                "hdfs:///user/me"
            )
        port = int(found["port"]) if found["port"] else None
        return found["scheme"], found["host"], port, found["path"], found.start("path")

    def get_filesystem(self) -> Any:
        """Connect to HDFS.

        Returns:
            A file system of fsspec.
        """
        options = {name: value for name, value in self._options.items() if value is not None}
        options.update(self.storage_options or {})
        host, port = self._host or "default", self._port or 0
        return fsspec.filesystem("hdfs", host=host, port=port, **options)

    def get_full_path(self, path: str) -> str:
        """Return a path with scheme and host.

        Args:
            path: A path, with or without them.

        Returns:
            The path as Spark expects it.
        """
        _, host, port, local, _ = self.parse_url(path)
        host, port = host or self._host, port or self._port
        return f"{self.FS_PREFIX}{host or ''}{f':{port}' if port else ''}{local}"

    def get_localized_path(self, path: str) -> str:
        """Return a path as HDFS itself expects it.

        Args:
            path: A path, with or without scheme and host.

        Returns:
            The path alone.
        """
        return self.parse_url(path)[3]


_DBFS = re.compile(r"(dbfs:/+|/dbfs(/|$)|file:(//)?/dbfs(/|$))")
