"""Names of Horovod's launcher that programs import: threads, and addresses of this machine."""
