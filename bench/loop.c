/* The calls that mpi4py makes, made without it: what it adds to each is the difference. See bench/cloop.py. */

#include <mpi.h>

/* Make `calls` all-reduces of `count` floats among the ranks of `comm`. Return MPI_SUCCESS, or -1 where this MPI is
   not the one that the process runs. */
int collbench_allreduces(MPI_Fint comm, const float *send, float *recv, int count, int calls)
{
    int running = 0, error = MPI_SUCCESS;
    MPI_Initialized(&running);
    if (!running)
        return -1;
    MPI_Comm ranks = MPI_Comm_f2c(comm);
    for (int call = 0; call < calls && error == MPI_SUCCESS; call++)
        error = MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, ranks);
    return error;
}
