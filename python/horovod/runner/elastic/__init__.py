"""Names of Horovod's elastic launcher that programs import; the launcher itself is `horovodrun`."""
