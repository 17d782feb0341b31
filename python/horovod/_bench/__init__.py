"""What `ronde bench` runs on every rank; it is private and imports a framework only to compare it.

`__main__` is a rank of Ronde, `mpi` one of MPI. Rank 0 is the scheduler: it tells every process
over a socket when to measure, so that the processes of all other systems sleep meanwhile.
"""
