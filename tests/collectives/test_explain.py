import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from collectives import PRIMITIVES, allreduce
from collectives.drawing import COMBINED, MOVED, draw
from collectives.explain import diagram, main
from collectives.proof import Refuted
from collectives.replay import letters, replay
from collectives.rounds import RecvReduce, Send

ROOT = Path(__file__).parents[2]
ALL = [
    algorithm
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if algorithm.name not in getattr(PRIMITIVES.get(primitive.name.removesuffix("v")), "algorithms", {})
    or not primitive.name.endswith("v")  # the others run the same rounds on blocks of any length
]


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


def printed(capsys, words):
    assert main(words.split()) == 0
    return capsys.readouterr().out


def test_allgather_is_the_seeds_diagram(capsys):
    assert printed(capsys, "allgather -n 3") == (
        "[Before]\n"
        "Rank 0: [A]\n"
        "Rank 1: [B]\n"
        "Rank 2: [C]\n"
        "\n"
        "[After]\n"
        "Rank 0: [A, B, C]\n"
        "Rank 1: [A, B, C]\n"
        "Rank 2: [A, B, C]\n"
    )


def test_alltoall_is_the_seeds_diagram(capsys):
    assert printed(capsys, "alltoall -n 3") == (
        "[Before]\n"
        "Rank 0: [A0, A1, A2]\n"
        "Rank 1: [B0, B1, B2]\n"
        "Rank 2: [C0, C1, C2]\n"
        "\n"
        "[After]\n"
        "Rank 0: [A0, B0, C0]\n"
        "Rank 1: [A1, B1, C1]\n"
        "Rank 2: [A2, B2, C2]\n"
    )


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        ("broadcast -n 3 --root 1", ["[]", "[B]", "[]"], ["[B]", "[B]", "[B]"]),
        ("scatter -n 3 -r 2", ["[]", "[]", "[C0, C1, C2]"], ["[C0]", "[C1]", "[C2]"]),
        ("gather -n 3", ["[A]", "[B]", "[C]"], ["[A, B, C]", "[]", "[]"]),
        ("reduce -n 3 -r 1", ["[A]", "[B]", "[C]"], ["[]", "[A+B+C]", "[]"]),
        (
            "allreduce -n 3",
            ["[A0, A1, A2]", "[B0, B1, B2]", "[C0, C1, C2]"],
            ["[A0+B0+C0, A1+B1+C1, A2+B2+C2]"] * 3,
        ),
        (
            "reduce_scatter -n 3",
            ["[A0, A1, A2]", "[B0, B1, B2]", "[C0, C1, C2]"],
            ["[A0+B0+C0]", "[A1+B1+C1]", "[A2+B2+C2]"],
        ),
        ("sendrecv_pingpong -n 2", ["[A]", "[B]"], ["[B]", "[A]"]),
        ("sendrecv_stream -n 3", ["[A]", "[]", "[]"], ["[]", "[]", "[A]"]),
        ("sendrecv_ring -n 3", ["[A]", "[B]", "[C]"], ["[C]", "[A]", "[B]"]),
        ("barrier -n 2", ["[A]", "[B]"], ["[A, B]", "[A, B]"]),
        ("allgather -n 1", ["[A]"], ["[A]"]),
    ],
)
def test_what_a_primitive_does(capsys, words, before, after):
    nranks = len(before)
    lines = printed(capsys, words).splitlines()
    assert lines[1 : 1 + nranks] == [f"Rank {rank}: {held}" for rank, held in enumerate(before)]
    assert lines[-nranks:] == [f"Rank {rank}: {held}" for rank, held in enumerate(after)]


def test_four_ranks_are_explained_unless_told_otherwise(capsys):
    assert printed(capsys, "allgather").count("Rank") == 8


def test_a_moving_algorithm_round_by_round(capsys):
    assert printed(capsys, "allgather -n 3 --algorithm ring") == (
        "allgather ring, 3 ranks\n"
        "Each block travels once around the ring (Chan et al. 2007).\n"
        "\n"
        "[Before]\n"
        "Rank 0: [A]\n"
        "Rank 1: [B]\n"
        "Rank 2: [C]\n"
        "\n"
        "[Round 0]\n"
        "Rank 0 -> Rank 1: A\n"
        "Rank 1 -> Rank 2: B\n"
        "Rank 2 -> Rank 0: C\n"
        "Rank 0: [A, ·, C]\n"
        "Rank 1: [A, B, ·]\n"
        "Rank 2: [·, B, C]\n"
        "\n"
        "[Round 1]\n"
        "Rank 0 -> Rank 1: C\n"
        "Rank 1 -> Rank 2: A\n"
        "Rank 2 -> Rank 0: B\n"
        "Rank 0: [A, B, C]\n"
        "Rank 1: [A, B, C]\n"
        "Rank 2: [A, B, C]\n"
        "\n"
        "[After]\n"
        "Rank 0: [A, B, C]\n"
        "Rank 1: [A, B, C]\n"
        "Rank 2: [A, B, C]\n"
        "\n"
        "Rounds: 2; messages one after another: 2 (at least 2)\n"
        "The busiest rank moves 0.6667 vectors (at least 0.6667)\n"
    )


def test_a_combining_algorithm_keeps_the_order_in_which_it_combines(capsys):
    text = printed(capsys, "reduce_scatter -n 3 -a ring")
    assert "[Round 0]\nRank 0 -> Rank 1: A2, combined\nRank 1 -> Rank 2: B0, combined\n" in text
    assert "Rank 0: [A0, A1+C1, A2]\n" in text
    assert "[After]\nRank 0: [A0+C0+B0]\n" in text
    assert text.endswith(
        "The busiest rank moves 0.6667 vectors (at least 0.6667)\n"
        "The busiest rank combines 0.6667 vectors (at least 0.6667)\n"
    )


def test_what_is_passed_on_is_shown_as_carried(capsys):
    text = printed(capsys, "alltoall -n 4 -a bruck")
    assert "Rank 0 -> Rank 1: A1, A3\n" in text
    assert "Rank 1: [A1, B1, ·, ·] carries A3\n" in text


def test_a_barrier_shows_who_is_known_to_have_entered(capsys):
    text = printed(capsys, "barrier -n 3 -a dissemination")
    assert "A letter stands for a rank that is known to have entered." in text
    assert "Rank 0 -> Rank 1: signal\n" in text
    assert "Rank 0: [A, ·, C]\n" in text
    assert text.endswith("Rounds: 2; messages one after another: 2 (at least 2)\n")


def test_shared_memory_is_named_where_it_is_used(capsys):
    shared = [one for one in PRIMITIVES["allreduce"].algorithms.values() if one.shares_memory(allreduce.problem(3, 3))]
    for algorithm in shared:
        text = printed(capsys, f"allreduce -n 3 -a {algorithm.name}")
        assert "Ranks 0, 1, 2 meet at a fence\n" in text
        assert "in shared memory\n" in text
        assert "at least" not in text  # of ranks that send messages


def test_parameters_and_root_are_named(capsys):
    text = printed(capsys, "broadcast -n 3 -a chain:segments=2 -r 2")
    assert text.startswith("broadcast chain:segments=2, 3 ranks, root 2\n")
    assert "[Before]\nRank 0: []\nRank 1: []\nRank 2: [C0, C1]\n" in text
    assert "Rank 2 -> Rank 0: C0\n" in text


def test_long_sums_are_shortened():
    told = replay(allreduce.find("recursive_doubling"), 8)
    assert told.label(0, tuple(range(8))) == "A+..+H"
    assert told.label(0, (0, 1, 2, 3)) == "A+B+C+D"
    assert told.label(0, (7, 6, 5, 4, 3, 0)) == "H+..+D+A"
    assert [letters(rank) for rank in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_every_algorithm_is_explained_and_drawn(algorithm):
    for nranks in (1, 2, 5, 8):
        if algorithm.unmet(algorithm.primitive.problem(nranks, nranks)):
            continue
        told = replay(algorithm, nranks, nranks - 1 if algorithm.primitive.rooted else 0)
        assert len(told.states) == len(told.numbers) + 1 == len(told.deliveries) + 1
        assert len(list(diagram(told))) == 2 * nranks + 3
        picture = ElementTree.fromstring(draw(told))
        arrows = [one for one in picture.iter("{http://www.w3.org/2000/svg}path") if len(one)]  # those with a title
        assert len(arrows) == sum(map(len, told.deliveries))


def drawn(tmp_path, words):
    file = tmp_path / "rounds.svg"
    assert main([*words.split(), "--svg", str(file)]) == 0
    return ElementTree.parse(file).getroot()


def texts(picture):
    return [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_has_ranks_rounds_chunks_and_marks_of_reduction(tmp_path):
    picture = drawn(tmp_path, "allreduce -a ring -n 3")
    words = texts(picture)
    assert [f"rank {rank}" for rank in range(3)] == [word for word in words if word.startswith("rank ")]
    assert [f"round {number}" for number in range(4)] == [word for word in words if word.startswith("round ")]
    assert words[0] == "allreduce ring, 3 ranks"
    assert {"C1+B1", "A2", "a message that is combined with the own value"} <= set(words)
    looks = [one.get("class", "") for one in picture.iter()]
    assert looks.count("plus combined") == 6 + 1  # one a reduction, and the legend's
    style = next(picture.iter("{http://www.w3.org/2000/svg}style")).text
    assert MOVED in style
    assert COMBINED in style


def test_a_picture_of_many_ranks_names_parts_instead_of_sums(tmp_path):
    words = texts(drawn(tmp_path, "allreduce -a ring -n 16"))
    assert "A0" not in words
    assert words.count("15") > 16
    assert max(len(word) for word in words[6:]) < 40


def test_nothing_in_a_picture_lies_outside_it(tmp_path):
    for words in ("alltoall -a bruck -n 16", "allreduce -a rabenseifner -n 6", "broadcast -a binomial -n 2"):
        picture = drawn(tmp_path, words)
        width, height = float(picture.get("width")), float(picture.get("height"))
        boxes = [one for one in picture.iter("{http://www.w3.org/2000/svg}rect") if one.get("x")]
        assert all(float(one.get("x")) + float(one.get("width")) <= width for one in boxes)
        assert all(float(one.get("y")) + float(one.get("height")) <= height for one in boxes)


def test_the_catalogue_is_listed(capsys):
    assert "allreduce          ring " in printed(capsys, "--list")
    assert "counted at 6 ranks" in printed(capsys, "--list -n 6")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "name a primitive: one of broadcast, "),
        ("allgater", "there is no primitive 'allgater' (did you mean allgather? there are: broadcast, "),
        ("allgather -n 0", "'0' is not a whole number from 1 up; write one such as 4"),
        ("allgather -n many", "'many' is not a whole number from 1 up"),
        ("allgather -a rink", "allgather has no algorithm 'rink' (it has: ring, "),
        ("broadcast -a chain:parts=2", "has no parameter 'parts' (it has: segments"),
        ("broadcast -a chain:segments=0", "chain:segments=0 is not a whole number of at least 1"),
        ("allgather -n 6 -a recursive_doubling", "-n 6: recursive_doubling needs a number of ranks that is a power of"),
        ("sendrecv_stream -n 1", "-n 1: sendrecv_stream needs at least two ranks"),
        ("broadcast -n 3 -r 3", "root 3 is none of the ranks 0 to 2"),
        ("broadcast -r -1", "--root"),
        ("allgather -r 0", "--root 0: allgather has no root; leave it out"),
        ("allgather --svg rounds.svg", "--svg draws the rounds of an algorithm: add --algorithm, one of ring, "),
        ("allgather -a ring --svg /nowhere/rounds.svg", "--svg /nowhere/rounds.svg: No such file or directory; name a"),
        ("allgather -a ring -n 65 --svg rounds.svg", "-n 65: more ranks than can be drawn; at most 64"),
        ("allgather --rounds 3", "unrecognized arguments: --rounds"),
    ],
)
def test_bad_input_is_one_message_and_exit_status_2(capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert message in seen.err
    assert seen.err.count("\n") == 1


def test_a_wrong_algorithm_is_not_explained_but_refuted():
    copy = allreduce.like("allreduce")

    @copy.algorithm()
    def one_way(rank, nranks):
        yield Send(1, 0) if rank == 0 else RecvReduce(0, 0)

    with pytest.raises(Refuted, match="rank 0, round 1: chunk 0 lacks the contribution of rank 1"):
        replay(copy.find("one_way"), 2)
