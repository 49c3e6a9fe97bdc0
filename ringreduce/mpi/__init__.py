"""What works with the MPI library of the host: the interposer, which is built for it on first use."""
