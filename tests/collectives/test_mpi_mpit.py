import dataclasses

import pytest
from mpi4py import MPI

from collectives import mpit
from collectives.mpit import NotWritable, NoVariable, Setting, ToolError, ToolInterface

pytestmark = pytest.mark.mpi

OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
INTEGER = "coll_tuned_allreduce_algorithm_segmentsize" if OPEN_MPI else "MPIR_CVAR_ALLREDUCE_RECEXCH_KVAL"
TEXT = "opal_stacktrace_output" if OPEN_MPI else "MPIR_CVAR_BCAST_TREE_TYPE"
PYTHON_TYPES = {"char": str, "bool": bool, "double": float}


@pytest.fixture
def tool():
    with ToolInterface() as tool:
        yield tool


def test_the_library_is_the_one_that_is_loaded(tool):
    assert mpit.library_path().name.startswith("libmpi")
    assert tool.flavour == ("openmpi" if OPEN_MPI else "mpich")


def test_a_variable_that_exists(tool):
    variable = tool.variable(INTEGER)
    assert (variable.name, variable.kind, variable.binding, variable.writable) == (INTEGER, "int", "no_object", True)
    assert tool.variables[INTEGER] == variable


def test_what_a_variable_says_of_itself(tool):
    if OPEN_MPI:
        variable = tool.variable("coll_tuned_allreduce_algorithm")
        assert variable.items["ring"] == 4
        assert "Valid values" in variable.description or variable.description
    else:
        assert "recexch" in tool.variable("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM").description


def test_a_variable_that_does_not_exist(tool):
    with pytest.raises(NoVariable, match="no control variable 'nonsense'"):
        tool.read("nonsense")
    with pytest.raises(NoVariable):
        tool.write("nonsense", 1)


def test_a_setting_is_put_and_brought_back(tool):
    before = tool.read(INTEGER)
    setting = Setting(tool, tool.variable(INTEGER), before + 3)
    assert tool.read(INTEGER) == before
    for _ in range(2):
        setting.put()
        assert tool.read(INTEGER) == before + 3
        setting.back()
        assert tool.read(INTEGER) == before
    setting.free()


def test_a_setting_brings_back_what_was_there_when_it_was_put(tool):
    before = tool.read(INTEGER)
    setting = Setting(tool, tool.variable(INTEGER), before + 3)
    tool.write(INTEGER, before + 1)
    setting.put()
    setting.back()
    assert tool.read(INTEGER) == before + 1
    tool.write(INTEGER, before)
    setting.free()


def test_a_variable_that_is_read_only_has_no_setting(tool):
    constant = dataclasses.replace(tool.variable(INTEGER), scope="readonly")
    with pytest.raises(NotWritable, match="set it in the environment"):
        Setting(tool, constant, tool.read(constant))


def test_what_is_written_is_read_back_and_restored(tool):
    before = tool.read(INTEGER)
    tool.write(INTEGER, 3)
    assert tool.read(INTEGER) == 3
    tool.write(INTEGER, before)
    assert tool.read(INTEGER) == before


def test_text_is_written_and_read_back(tool):
    before = tool.read(TEXT)
    tool.write(TEXT, "stdout" if OPEN_MPI else "knomial_1")
    assert tool.read(TEXT) == ("stdout" if OPEN_MPI else "knomial_1")
    tool.write(TEXT, before)
    assert tool.read(TEXT) == before


def test_a_read_only_variable_is_not_written(tool):
    # MPICH has none, so one is made out to be.
    variable = tool.variable("coll_self_priority" if OPEN_MPI else INTEGER)
    if not OPEN_MPI:
        variable = dataclasses.replace(variable, scope="readonly")
    before = tool.read(variable)
    with pytest.raises(NotWritable, match="is readonly: set it in the environment"):
        tool.write(variable, 1)
    assert tool.read(variable) == before


def test_one_of_each_type_is_read(tool):
    kinds = {variable.kind: variable for variable in tool.variables.values() if "vader" not in variable.name}
    assert set(kinds) >= ({"int", "char", "bool", "unsigned", "unsigned long"} if OPEN_MPI else {"int", "char"})
    for kind, variable in kinds.items():
        assert type(tool.read(variable)) is PYTHON_TYPES.get(kind, int)


def test_every_variable_has_known_words(tool):
    for variable in tool.variables.values():
        assert variable.kind != "unknown"
        assert variable.scope in mpit.SCOPES
        assert variable.binding in mpit.BINDINGS


def test_a_variable_bound_to_an_object_is_refused(tool):
    with pytest.raises(ToolError, match="bound to a comm"):
        tool.read(dataclasses.replace(tool.variable(INTEGER), binding="comm"))


def test_it_can_be_opened_twice_and_closed_twice():
    with ToolInterface() as one, ToolInterface() as other:
        assert one.read(INTEGER) == other.read(INTEGER)
        one.close()
        assert isinstance(other.read(INTEGER), int)


def test_what_is_counted_for_each_rank(tool, comm):
    if not OPEN_MPI:
        with pytest.raises(NoVariable, match="counts no"):
            tool.watch("pml_ob1_posted_recvq_length", comm)
        return
    waiting = tool.watch("pml_ob1_posted_recvq_length", comm)
    source = (comm.rank - 1) % comm.size
    request = comm.Irecv(bytearray(4), source, 7)
    posted = waiting()
    comm.Barrier()  # nothing is sent before all have looked
    comm.Send(b"data", (comm.rank + 1) % comm.size, 7)
    request.Wait()
    assert posted == tuple(int(rank == source) for rank in range(comm.size))
    assert sum(waiting()) == 0
    waiting.free()


def test_a_library_that_is_neither_is_refused(monkeypatch):
    monkeypatch.setattr(mpit, "flavour", lambda path: None)
    with pytest.raises(ToolError, match="neither MPICH nor Open MPI"):
        ToolInterface()
