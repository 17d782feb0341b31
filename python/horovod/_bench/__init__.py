"""What `ronde bench` runs on every rank: private, and without a framework unless one is compared.

`__main__` is a rank of Ronde, `mpi` one of MPI. Rank 0 is the conductor: it gives every process its
turns over a socket, so that while one system measures the processes of the others sleep.
"""
