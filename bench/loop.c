/* The same all-reduce, over and over, without Python: what mpi4py's own call costs is the difference. */
#include <mpi.h>

#if defined(MPICH_VERSION)
const char built_for[] = "MPICH " MPICH_VERSION;
#elif defined(OMPI_MAJOR_VERSION)
#define TEXT(x) #x
#define VERSION(major, minor, release) "Open MPI " TEXT(major) "." TEXT(minor) "." TEXT(release)
const char built_for[] = VERSION(OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
#else
const char built_for[] = "";
#endif

/* Seconds of `calls` all-reduces of `count` floats back to back. `comm` points to a communicator. */
double loop(MPI_Comm *comm, int count, int calls, float *send, float *recv)
{
    MPI_Barrier(*comm);
    double begin = MPI_Wtime();
    for (int call = 0; call < calls; call++)
        MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, *comm);
    return MPI_Wtime() - begin;
}
