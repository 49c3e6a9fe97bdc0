"""The MPI interposer and the MPI transport, which are built on first use for the installed MPI library."""
