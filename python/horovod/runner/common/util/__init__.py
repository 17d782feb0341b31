"""Names of Horovod's launcher that programs import: thin layers over Ronde's own."""
