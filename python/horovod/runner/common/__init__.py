"""Names of Horovod's launcher that programs import."""
