from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.mesh import AXES, ORDERS, Mesh, block, divide, megatron, parse_order, parse_spec


def ranks(text):
    """ "01 23" -> [(0, 1), (2, 3)]"""
    return [tuple(int(digit) for digit in group) for group in text.split()]


@st.composite
def meshes(draw):
    axes = draw(st.permutations(["tp", "cp", "ulysses", "ep", "dp", "pp"]))
    lengths = {axis: draw(st.integers(1, 3)) for axis in axes[: draw(st.integers(1, 4))]}
    return Mesh(lengths, "-".join(axes), nranks=prod(lengths.values()) * draw(st.integers(1, 2)))


@pytest.mark.parametrize(
    ("order", "tp", "cp", "dp"),
    [
        ("tp-cp-dp", "01 23 45 67", "02 13 46 57", "04 15 26 37"),
        ("tp-dp-cp", "01 23 45 67", "04 15 26 37", "02 13 46 57"),
    ],
)
def test_order_decides_the_groups_of_eight_ranks(order, tp, cp, dp):
    mesh = Mesh("tp=2,cp=2,dp=2", order=order)
    assert mesh.groups("tp") == ranks(tp)
    assert mesh.groups("cp") == ranks(cp)
    assert mesh.groups("dp") == ranks(dp)


def test_a_root_is_a_group_rank_and_not_a_rank():
    mesh = Mesh("tp=2,cp=2,dp=2", order="tp-cp-dp")
    last_of_second = mesh.groups("tp")[1][-1]
    assert last_of_second == 3
    assert mesh.group_rank("tp", last_of_second) == 1
    assert mesh.group("tp", 3)[1] == 3


def test_order_is_recorded_and_does_not_depend_on_how_the_spec_is_written():
    assert Mesh("cp=4,tp=2") == Mesh("tp=2,cp=4") == Mesh("tp=2,cp=4,pp=1")
    assert Mesh("tp=2,cp=4").order == "tp-ulysses-cp-ep-dp-pp"
    assert repr(Mesh("cp=4,tp=2")) == "Mesh('tp=2,cp=4', order='tp-ulysses-cp-ep-dp-pp', nranks=8)"
    assert Mesh("tp=2,cp=4", order="cp-tp") != Mesh("tp=2,cp=4", order="tp-cp")


def test_groups_over_several_axes_are_sorted_by_rank():
    mesh = Mesh("tp=2,cp=2,dp=2", order="tp-cp-dp")
    assert mesh.groups("dp-cp") == mesh.groups(["cp", "dp"]) == ranks("0246 1357")
    assert mesh.groups("tp-cp-dp") == ranks("01234567")
    assert mesh.length("dp-cp") == 4
    assert mesh.group_rank("dp-cp", 6) == 3


def test_ends_of_a_pipeline():
    mesh = Mesh("tp=2,pp=4")
    assert mesh.group("pp", 1) == (1, 3, 5, 7)
    assert mesh.group("pp", 1, ends=True) == mesh.group("pp", 7, ends=True) == (1, 7)
    assert mesh.group("pp", 3, ends=True) == (3,)


@settings(deadline=None)
@given(meshes(), st.sets(st.sampled_from(sorted(AXES)), max_size=4))
def test_groups_partition_the_ranks(mesh, axes):
    groups = mesh.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.nranks))
    assert {len(group) for group in groups} == {mesh.length(axes)}
    for group in groups:
        for place, rank in enumerate(group):
            assert mesh.group(axes, rank) == group
            assert mesh.group_rank(axes, rank) == place


@settings(deadline=None)
@given(meshes(), st.data())
def test_group_is_the_ranks_that_agree_on_all_other_axes(mesh, data):
    rank = data.draw(st.integers(0, mesh.nranks - 1))
    for axis in mesh.axes:
        others = {**mesh.coordinates(rank), axis: None}
        agree = [r for r in range(mesh.nranks) if {**mesh.coordinates(r), axis: None} == others]
        assert list(mesh.group(axis, rank)) == agree


@settings(deadline=None)
@given(meshes())
def test_coordinates_lead_back_to_the_rank(mesh):
    for rank in range(mesh.nranks):
        assert mesh.rank_at(mesh.coordinates(rank)) == rank


def test_megatron_dense_groups():
    # the worked examples of Megatron-LM: 8 ranks with t=4, c=2; 16 ranks with t=2, p=4
    dense = megatron("tp=4,cp=2", nranks=8).dense
    assert dense.groups("cp") == ranks("04 15 26 37")
    assert dense.groups("tp") == ranks("0123 4567")
    dense = megatron("tp=2,pp=4", nranks=16).dense
    assert dense.groups("tp")[:2] == [(0, 1), (2, 3)]
    assert dense.groups("dp")[:4] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert dense.groups("pp")[:2] == [(0, 4, 8, 12), (1, 5, 9, 13)]


def test_megatron_experts_borrow_the_ranks_of_dp_and_cp():
    dense, expert = megatron("tp=2,cp=2,pp=2,ep=4,etp=1", nranks=16)
    assert dense.shape["dp"] == 2
    assert expert.shape["expert_dp"] == 2
    assert expert.groups("ep")[:2] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert expert.groups("expert_dp")[:2] == [(0, 4), (1, 5)]
    assert dense.groups("pp") == expert.groups("pp")


def test_megatron_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"24 ranks do not divide by etp=2,ep=8,pp=1: 24 = 16·1 \+ 8"):
        megatron("tp=2,ep=8", nranks=24)
    with pytest.raises(ValueError, match="put pp last"):
        megatron("tp=2,pp=2,etp=1", nranks=8, order="tp-pp-cp-ep-dp")
    with pytest.raises(ValueError, match="leave dp=4; drop dp"):
        megatron("tp=2,dp=2", nranks=8)
    with pytest.raises(ValueError, match="no ulysses"):
        megatron("ulysses=2", nranks=8)


def test_named_orders():
    # neighbours of the outermost axis are farthest apart: pp for Megatron and torch, dp for Llama 3 and vLLM
    assert Mesh("tp=2,dp=2,pp=2", "megatron").groups("pp") == ranks("04 15 26 37")
    assert Mesh("tp=2,dp=2,pp=2", "llama3").groups("dp") == ranks("04 15 26 37")
    torch = Mesh("tp=2,dp_shard=2,dp_replicate=2,pp=2", "torch")
    assert torch.group("dp_shard", 0) == (0, 2)
    assert torch.group("dp_replicate", 0) == (0, 4)
    vllm = Mesh("tp=2,pp=2,dp=2", "vllm", nranks=16)
    assert vllm.group("tp-cp-dp", 0) == (0, 1, 4, 5)  # its expert group
    assert vllm.length("repeat") == 2  # its external data parallel
    assert all(parse_order(name) for name in ORDERS)


def test_both_placements_of_ring_and_ulysses():
    ring_inner = Mesh("cp=4,ulysses=2", placement="ring-inner")
    assert ring_inner.groups("cp") == ranks("0123 4567")
    assert ring_inner.groups("ulysses") == ranks("04 15 26 37")
    ulysses_inner = Mesh("cp=4,ulysses=2", placement="ulysses-inner")
    assert ulysses_inner.groups("cp") == ranks("0246 1357")
    assert ulysses_inner.groups("ulysses") == ranks("01 23 45 67")
    assert Mesh("cp=4,ulysses=2") == ulysses_inner
    assert Mesh("cp=4,ulysses=2", order="cp-ulysses") == ring_inner


def test_ranks_left_over_repeat():
    mesh = Mesh("cp=4", nranks=8)
    assert mesh.shape["repeat"] == 2
    assert mesh.groups("cp") == ranks("0123 4567")
    assert mesh.groups("repeat") == ranks("04 15 26 37")


@pytest.mark.parametrize(
    ("spec", "order", "nranks", "message"),
    [
        ("cp=3", "megatron", 8, r"8 ranks do not divide by cp=3: 8 = 3·2 \+ 2; .*6 or 9"),
        ("tp=4,cp=4", "megatron", 8, r"8 ranks do not divide by tp=4,cp=4: 8 = 16·0 \+ 8; .*such as 16"),
        ("tp=2", "megatron", 0, "0 ranks"),
        ("tp=0", "megatron", None, "tp=0: .*at least 1"),
        ("tp=-2", "megatron", None, "'tp=-2' is not AXIS=LENGTH; write a mesh like"),
        ("tp", "megatron", None, "'tp' is not AXIS=LENGTH"),
        ("", "megatron", None, "'' is not AXIS=LENGTH"),
        ("tp=2,tp=2", "megatron", None, "tp is given twice"),
        ("sp=2", "megatron", None, "'sp' is no axis .*called ulysses.*the axes are tp, cp"),
        ("repeat=2", "megatron", None, "use dp"),
        ("dp_shard=2", "megatron", None, r"no dp_shard; .*\(torch\)"),
        ("tp=2", "tp-cp-tp", None, "names tp; each axis once"),
        ("tp=2", "tp-cp-repeat", None, "names repeat"),
        ("tp=2", "tp-xx", None, "'xx' in order 'tp-xx' is no axis; .*megatron"),
    ],
)
def test_refusals_name_the_value_and_the_remedy(spec, order, nranks, message):
    with pytest.raises(ValueError, match=message):
        Mesh(spec, order, nranks)


def test_refusals_of_placements_ranks_and_axes():
    with pytest.raises(ValueError, match="'middle' is no placement; take ulysses-inner or ring-inner"):
        Mesh("cp=2", placement="middle")
    with pytest.raises(ValueError, match="drop one of the two"):
        Mesh("cp=2,ulysses=2", order="cp-ulysses", placement="ring-inner")
    mesh = Mesh("tp=2,cp=2")
    with pytest.raises(ValueError, match="rank 4: this mesh has ranks 0 to 3"):
        mesh.group("tp", 4)
    with pytest.raises(ValueError, match="tp=2: this mesh has tp 0 to 1"):
        mesh.rank_at({"tp": 2})
    with pytest.raises(ValueError, match="'dpp' is no axis"):
        mesh.group("tp-dpp", 0)


def test_a_hundred_thousand_ranks_are_grouped_without_scanning_them_all():
    # It takes a second; were all ranks scanned for each group, it would take an hour, and the test be ended.
    mesh = Mesh("tp=8,cp=5,dp=50,pp=50")
    assert mesh.nranks == 100_000
    assert sum(len(group) for axis in mesh.axes for group in mesh.groups(axis)) == 100_000 * len(mesh.axes)
    assert all(rank in mesh.group("tp", rank) for rank in range(mesh.nranks))


def test_spec_reading():
    assert parse_spec(" tp=2, cp = 4") == {"tp": 2, "cp": 4}


def test_divide_says_the_arithmetic():
    assert divide(16, 4, "heads", "ulysses=4") == 4
    with pytest.raises(ValueError, match=r"16 heads do not divide by ulysses=3: 16 = 3·5 \+ 1; .*15 or 18"):
        divide(16, 3, "heads", "ulysses=3")


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(1, 9))
def test_blocks_cover_everything_once_and_differ_by_one(count, nblocks):
    blocks = [block(count, nblocks, index) for index in range(nblocks)]
    assert [item for held in blocks for item in held] == list(range(count))
    assert [len(held) for held in blocks] == sorted((len(held) for held in blocks), reverse=True)
    assert len(blocks[0]) - len(blocks[-1]) <= 1


class FakeComm:
    """Splits without MPI; counts how many communicators are open."""

    open = 0

    def __init__(self, nranks, rank):
        self.nranks, self.rank, self.splits = nranks, rank, []

    def Get_size(self):
        return self.nranks

    def Get_rank(self):
        return self.rank

    def Split(self, color, key):
        self.splits.append((color, key))
        FakeComm.open += 1
        return FakeComm(1, 0)

    def Free(self):
        FakeComm.open -= 1


def test_communicators_are_made_once_and_freed():
    world = FakeComm(8, rank=5)
    with Mesh("tp=2,cp=2,pp=2") as mesh:
        tp = mesh.communicator(world, "tp")
        assert mesh.communicator(world, "tp") is mesh.communicator(world, "tp-ep") is tp
        assert mesh.communicator(world, "cp-tp") is mesh.communicator(world, ["tp", "cp"]) is not tp
        assert world.splits == [(4, 5), (4, 5)]
        assert FakeComm.open == 2
    assert FakeComm.open == 0


def test_thousands_of_configurations_leave_no_communicator_behind():
    world = FakeComm(8, rank=0)
    for _ in range(5_000):
        with Mesh("tp=2,cp=2,dp=2") as mesh:
            for axes in ("tp", "cp", "dp", "dp-cp", "tp-cp", "tp", "cp", "dp"):
                mesh.communicator(world, axes)
    assert len(world.splits) == 25_000
    assert FakeComm.open == 0


def test_ends_have_a_communicator_and_the_middle_one_of_its_own():
    mesh = Mesh("pp=4")
    colors = []
    for rank in range(4):
        world = FakeComm(4, rank)
        mesh.communicator(world, "pp", ends=True)
        colors += [color for color, _ in world.splits]
        mesh.free()
    assert colors == [0, 1, 2, 0]


def test_a_communicator_of_the_wrong_kind_is_refused():
    mesh = Mesh("tp=2")
    with pytest.raises(ValueError, match=r"needs a communicator of 2 ranks, this one has 4; .*nranks=4"):
        mesh.communicator(FakeComm(4, 0), "tp")
    mesh.communicator(FakeComm(2, 0), "tp")
    with pytest.raises(ValueError, match=r"call free\(\) first"):
        mesh.communicator(FakeComm(2, 0), "tp")
    mesh.free()


def test_after_an_error_nothing_collective_is_called():
    mesh = Mesh("tp=2")
    with pytest.raises(RuntimeError), mesh:
        mesh.communicator(FakeComm(2, 0), "tp")
        raise RuntimeError
    assert FakeComm.open == 1
    mesh.free()
    assert FakeComm.open == 0


def test_axes_that_are_used_are_named_in_mesh_order():
    mesh = Mesh("tp=2,dp=3", nranks=12)
    assert mesh.used("dp-cp-tp") == "tp-dp"
    assert mesh.used(["dp"]) == "dp"
    assert mesh.used("cp-ep") == ""
