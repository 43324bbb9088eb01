"""What the other tests under mpirun rely on."""

import pytest

pytestmark = pytest.mark.mpi


def test_ranks_share_no_temporary_folder(comm, tmp_path):
    """Nor its parents, which pytest numbers and sweeps: two ranks at it at once fell over each other."""
    parents = comm.allgather([str(folder) for folder in (tmp_path, *list(tmp_path.parents)[:2])])
    assert len({folder for of_rank in parents for folder in of_rank}) == 3 * comm.Get_size()
