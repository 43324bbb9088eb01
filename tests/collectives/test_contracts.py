from collectives import allgather, alltoall, broadcast, reduce_scatter


def test_counts_of_buffers_follow_from_the_contract():
    uneven = allgather.problem(4, 73)
    assert uneven.block_counts == (19, 18, 18, 18)
    assert not uneven.even
    assert [allgather.send_count(uneven, rank) for rank in range(4)] == [19, 18, 18, 18]
    assert allgather.recv_count(uneven, 2) == 73
    assert [reduce_scatter.recv_count(reduce_scatter.problem(4, 73), rank) for rank in range(4)] == [19, 18, 18, 18]
    assert broadcast.send_count(broadcast.problem(3, 5, root=1), 0) == 0
    assert broadcast.recv_count(broadcast.problem(3, 5, root=1), 0) == 5
    matrix = alltoall.problem(2, 10, counts=((1, 2), (3, 4)))
    assert [alltoall.send_count(matrix, rank) for rank in range(2)] == [3, 7]
    assert [alltoall.recv_count(matrix, rank) for rank in range(2)] == [4, 6]
