import pytest

from collectives import PRIMITIVES, allreduce, catalogue


def test_every_algorithm_has_a_row():
    rows = catalogue.rows()
    assert [(row.primitive, row.algorithm) for row in rows] == [
        (primitive.name, algorithm) for primitive in PRIMITIVES.values() for algorithm in primitive.algorithms
    ]


def test_a_row_says_what_an_algorithm_needs_and_costs():
    rows = {(row.primitive, row.algorithm): row for row in catalogue.rows()}
    ring = rows["allreduce", "ring"]
    assert (ring.rounds, ring.messages, ring.sent, ring.received, ring.combined) == (
        "14",
        "14",
        "1.75",
        "1.75",
        "0.875",
    )
    assert (ring.keeps_order, ring.source) == ("no", "Patarasuk and Yuan 2009")
    assert "commutative" in ring.needs
    chain = rows["broadcast", "chain"]
    assert (chain.parameters, chain.rounds, chain.sent, chain.keeps_order) == ("segments=16", "22", "1", "-")
    assert rows["allreduce", "recursive_doubling"].keeps_order == "yes"
    assert "power of two" in rows["allgather", "recursive_doubling"].needs
    assert rows["gather", "linear"].received == "0.875"
    assert rows["barrier", "dissemination"].rounds == "3"


def test_where_an_algorithm_does_not_apply_nothing_is_counted():
    (row,) = [row for row in catalogue.rows(6, [PRIMITIVES["allgather"]]) if row.algorithm == "recursive_doubling"]
    assert (row.rounds, row.messages, row.sent, row.received, row.combined) == ("-",) * 5


def test_the_table_is_aligned_under_its_heading():
    lines = catalogue.table(primitives=[allreduce]).splitlines()
    assert lines[0].startswith("# counted at 8 ranks")
    assert lines[2].split()[:4] == ["primitive", "algorithm", "parameters", "rounds"]
    ends = lines[2].index("rounds") + len("rounds")
    assert all(line[:ends].split()[-1].isdigit() for line in lines[3:])
    assert len(lines) == 3 + len(allreduce.algorithms)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        ("Once around the ring (Patarasuk and Yuan 2009).", ["Patarasuk and Yuan 2009"]),
        ("A scatter, then a ring (van de Geijn; Thakur et al. 2005).", ["Thakur et al. 2005"]),
        ("Everything at once (both ways).", []),
    ],
)
def test_a_source_is_what_is_cited_with_its_year(words, sources):
    assert [one.strip() for one in catalogue.SOURCE.findall(words)] == sources
