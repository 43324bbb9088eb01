"""Run every strategy for real, and judge what is said about it: `mpirun -n 4 python -m strategies.audit`.

For each case of `cases` the step runs on all ranks. Then

- outputs, gradients and updated weights must equal those of the one-process step (`reference.TOLERANCE`),
- the calls that each rank was seen to make must equal those that `traffic` tells, one by one,
- the bytes that the transport moved must equal what `collectives.count` says of the algorithm, and what one rank sent
  another must have arrived there,
- the bubble of a pipeline's executed order must equal the formula.

`audit.csv` has a row for each case, `audit.md` the tables: what was seen, and the verdicts on the claims in `claims`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from collectives import PRIMITIVES
from collectives.count import RankCount, count
from collectives.gpu import Unusable, find
from collectives.launch import prepare
from collectives.problem import Problem
from strategies.cases import STRATEGIES, Case, cases
from strategies.claims import CLAIMS, LAYOUT_CLAIMS, judge, judge_experts, judge_layout, matches
from strategies.mesh import Mesh
from strategies.record import Record, Wire
from strategies.reference import TOLERANCE, differences
from strategies.schedule import bubble, ideal_bubble
from strategies.traffic import PHASES, Call, itemsize, merge, sent_nbytes, unrolled

ALGORITHMS = {
    "allreduce": "ring",
    "allgather": "ring",
    "allgatherv": "ring",
    "reduce_scatter": "ring",
    "reduce_scatterv": "ring",
    "alltoall": "pairwise",
    "alltoallv": "pairwise",
    "broadcast": "binomial",
    "reduce": "binomial",
}
"""By hand, so that it is known what moves; native calls hide it."""

EQUAL = "equal"


@dataclass(frozen=True)
class Row:
    """What one case gave, over all ranks. Texts of a phase: primitive, calls and bytes sent by the busiest rank."""

    strategy: str
    variant: str
    mesh: str
    order: str
    nranks: int
    model: str
    routing: str
    setup: str
    forward: str
    backward: str
    step: str
    calls: int  # of the rank that made most
    traffic: str  # "equal", or the first difference
    results: str  # "equal", or the first tensor that is not
    worst: float  # largest difference, as a share of the largest element
    moved: str  # "equal", or the first call whose bytes are not; "hidden" by native calls
    bubble: str  # of a pipeline, as a fraction, or what it should have been

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return (self.traffic, self.results) == (EQUAL, EQUAL) and self.moved in (EQUAL, "hidden") and (
            "should" not in self.bubble
        )  # fmt: skip


def run_case(
    comm: Any, case: Case, algorithms: Mapping[str, str], device: str = "cpu"
) -> tuple[Row, Counter[tuple[str, str]]]:
    """Run one case on all ranks of `comm`; gives its row, and how often each (phase, primitive) was seen anywhere.

    device: where its tensors lie, "cpu" or "cuda".
    """
    with case.mesh as mesh:
        wire = Wire(comm, mesh, algorithms, device)
        result = case.module.step(case.job, wire)
        whole = comm.bcast(case.module.expected(case.job, mesh) if comm.Get_rank() == 0 else None)
        found = differences(result, whole)
        predicted = list(unrolled(case.module.traffic(case.job, mesh, wire.rank)))
        mine = {
            "calls": len(wire.calls),
            "traffic": first_difference(wire.calls, predicted),
            "results": next((f"{one.name}: {one.distance:.1e}" for one in found if not one.ok), ""),
            "worst": max((one.distance / one.scale for one in found if one.scale), default=0.0),
            "moved": miscounted(wire.records, algorithms, wire),
            "sent": {phase: _sent(wire.calls, mesh, wire.rank, phase) for phase in PHASES},
            "pairs": pairs(wire.records, wire),
            "seen": Counter((call.phase, call.primitive) for call in wire.calls),
            "loss": result.loss,
        }
        orders = comm.allgather(result.actions)
        everyone = comm.allgather(mine)
    loss = sum(one["loss"] for one in everyone) / (mesh.length("tp") * mesh.length("repeat"))
    results = _first(one["results"] for one in everyone)
    if "loss" in whole and abs(loss - whole["loss"]) > TOLERANCE * abs(whole["loss"]):
        results = f"loss: {abs(loss - whole['loss']):.1e}"
    moved = _first(one["moved"] for one in everyone) or unmatched([one["pairs"] for one in everyone])
    row = Row(
        strategy=case.strategy,
        variant=case.job.variant,
        mesh=mesh.spec,
        order=mesh.order,
        nranks=mesh.nranks,
        model=case.job.model.name,
        routing=case.job.routing if case.strategy == "expert" else "",
        **{phase: _busiest([one["sent"][phase] for one in everyone]) for phase in PHASES},
        calls=max(one["calls"] for one in everyone),
        traffic=_first(one["traffic"] for one in everyone) or EQUAL,
        results=results or EQUAL,
        worst=max(one["worst"] for one in everyone),
        moved=moved or (EQUAL if algorithms else "hidden"),
        bubble=_bubble(case, mesh, orders),
    )
    return row, sum((one["seen"] for one in everyone), Counter())


def first_difference(seen: Sequence[Call], predicted: Sequence[Call]) -> str:
    """Say where the calls that were made differ first from those told; "" where they are the same."""
    for number, (one, other) in enumerate(zip_longest(seen, predicted)):
        if one != other:
            return f"call {number} is {_words(one)}, told was {_words(other)}"
    return ""


def _words(call: Call | None) -> str:
    return "none" if call is None else f"{call.phase} {call.primitive} over {call.axis} of {call.nbytes} bytes"


def miscounted(records: Iterable[Record], algorithms: Mapping[str, str], wire: Wire) -> str:
    """Say which call moved other bytes than its algorithm is counted to; "" if none did."""
    for record in records:
        if record.problem is None:
            continue
        call = record.call
        place = wire.mesh.group(call.axis, wire.rank, call.ends).index(wire.rank)
        told = _counted(record.problem, algorithms[call.primitive])[place]
        width = itemsize(call.dtype)
        moved, counted = (
            (sum(record.sent), sum(record.received)),
            (told.sent_count * width, told.received_count * width),
        )
        if moved != counted:
            return f"{_words(call)} sent and received {moved} bytes, counted are {counted}"
    return ""


@lru_cache(maxsize=1024)
def _counted(problem: Problem, algorithm: str) -> tuple[RankCount, ...]:
    primitive = PRIMITIVES[problem.primitive.name]
    return count(primitive.find(algorithm), problem).ranks


def pairs(records: Iterable[Record], wire: Wire) -> tuple[Counter[int], Counter[int]]:
    """Add up the bytes that this rank sent to, and received from, each rank of the mesh."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for record in records:
        group = wire.mesh.group(record.call.axis, wire.rank, record.call.ends)
        for sums, moved in ((sent, record.sent), (received, record.received)):
            sums.update({peer: nbytes for peer, nbytes in zip(group, moved, strict=False) if nbytes})
    return sent, received


def unmatched(everyone: Sequence[tuple[Counter[int], Counter[int]]]) -> str:
    """Say which rank received other bytes than another sent it; "" if none did."""
    for source, (sent, _) in enumerate(everyone):
        for rank, (_, received) in enumerate(everyone):
            if sent[rank] != received[source]:
                return f"rank {source} sent rank {rank} {sent[rank]} bytes, which received {received[source]}"
    return ""


def _first(texts: Iterable[str]) -> str:
    return next((f"rank {rank}: {text}" for rank, text in enumerate(texts) if text), "")


def _sent(calls: Iterable[Call], mesh: Mesh, rank: int, phase: str) -> dict[str, tuple[int, int]]:
    """Add up calls and bytes sent in a phase, by primitive, as sent by algorithms that move no byte twice."""
    sums: dict[str, tuple[int, int]] = {}
    for call in merge(calls):
        if call.phase == phase:
            ncalls, nbytes = sums.get(call.primitive, (0, 0))
            sums[call.primitive] = ncalls + call.times, nbytes + round(call.times * sent_nbytes(call, mesh, rank))
    return sums


def _busiest(ranks: Sequence[Mapping[str, tuple[int, int]]]) -> str:
    names = dict.fromkeys(name for sums in ranks for name in sums)
    most = {name: [max(sums.get(name, (0, 0))[i] for sums in ranks) for i in range(2)] for name in names}
    return ", ".join(f"{name} {ncalls}x {nbytes} B" for name, (ncalls, nbytes) in most.items())


def _bubble(case: Case, mesh: Mesh, orders: Sequence[Sequence[Any]]) -> str:
    stages = mesh.length("pp")
    if stages == 1:
        return ""
    wanted = ideal_bubble(stages, case.job.micro_batches, case.job.virtual_stages)
    waited = {bubble([orders[rank] for rank in group]) for group in mesh.groups("pp")}
    return str(wanted) if waited == {wanted} else f"{', '.join(map(str, waited))}; it should be {wanted}"


def verdicts(seen: Mapping[str, Iterable[tuple[str, str]]]) -> list[tuple[str, str, str, str, str]]:
    """Judge all claims: (claim, what was claimed, what was seen, verdict, remark)."""
    judged = [(claim, *judge(claim, seen)) for claim in CLAIMS]
    return [
        *(
            (claim.name, ", ".join(claim.primitives), ", ".join(sorted(needed)), verdict, claim.remark)
            for claim, verdict, needed in judged
        ),
        *(
            (f"layout: {layout.name}", "the note's table", "", judge_layout(matches(layout)), "")
            for layout in LAYOUT_CLAIMS
        ),
        ("layout: EP", "every GPU holds complete experts", "", judge_experts(), ""),
    ]


def report(rows: Sequence[Row], judged: Iterable[Sequence[str]]) -> str:
    """Write the audit as Markdown."""
    bad = [row for row in rows if not row.ok]
    lines = [
        f"# Audit of {len(rows)} steps on {rows[0].nranks} rank{'s' * (rows[0].nranks > 1)}",
        "",
        f"{len(rows) - len(bad)} of {len(rows)} agree: results with the one-process step (worst difference "
        f"{max(row.worst for row in rows):.1e} of the largest element), calls with what was told, bytes with counts.",
        "",
        "## The claims",
        "",
        *_table(("claim", "claimed", "seen", "verdict", "remark"), judged),
        "",
        "## What was seen",
        "",
        "Of each phase: primitive, calls, and bytes sent by the rank that sends most.",
        "",
        *_table(
            ("strategy", "variant", "mesh", "forward", "backward", "setup and step", "agrees"),
            (
                (
                    row.strategy, " ".join(filter(None, (row.variant, row.routing))), row.mesh, row.forward,
                    row.backward, ", ".join(filter(None, (row.setup, row.step))), "yes" if row.ok else "no",
                )
                for row in rows
            ),
        ),
    ]  # fmt: skip
    for row in bad:
        lines += ["", f"**{row.strategy} {row.variant} on {row.mesh}**: calls {row.traffic}; results {row.results}; "]
        lines += [f"bytes {row.moved}; bubble {row.bubble or 'none'}"]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


class _Parser(argparse.ArgumentParser):
    """Refuses with one line, on one rank."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(f"{self.prog}: error: {message} (--help lists the options)")


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in STRATEGIES:
            raise argparse.ArgumentTypeError(f"{name!r} is no strategy; take some of {', '.join(STRATEGIES)}")
    return names


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m strategies.audit",
        description="Run every parallel strategy on small tensors and compare with what is said about it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--strategy", type=_names, default=list(STRATEGIES), metavar="NAME,...", help="only these (default: all)"
    )
    parser.add_argument(
        "--algorithms", choices=("hand", "native"), default="hand",
        help="through algorithms by hand, whose bytes are counted, or native calls (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="where tensors lie: on the host, or on GPUs in CuPy's arrays (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path("results"), metavar="FOLDER",
        help="where audit.md and audit.csv go (default: %(default)s)",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the audit. Exit status 0 if all agrees, 1 if anything differs, 2 for options that make no sense."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            if comm.Get_rank() == 0:
                print(stop.code, file=sys.stderr)
            return 2
        raise
    try:
        reason = _use_gpu(comm) if args.device == "cuda" else ""
        if reason:
            if comm.Get_rank() == 0:
                print(f"{_parser().prog}: error: cannot use 'cuda' for --device ({reason})", file=sys.stderr)
            return 2
        return _audit(comm, args)
    except Exception:
        # The other ranks wait for this one: end them all.
        traceback.print_exc()
        sys.stderr.flush()
        comm.Abort(1)
        raise


def _use_gpu(comm: Any) -> str:
    """Put this rank's GPU in use; return on all ranks why some rank has none, "" if all have one."""
    node = comm.Split_type(_shared_type())
    local_rank = node.Get_rank()
    node.Free()
    reason = ""
    try:
        find(local_rank)
    except Unusable as error:
        reason = str(error)
    return _first(comm.allgather(reason))


def _shared_type() -> int:
    from mpi4py import MPI  # only who runs steps loads MPI

    kind: int = MPI.COMM_TYPE_SHARED
    return kind


def _audit(comm: Any, args: argparse.Namespace) -> int:
    rows: list[Row] = []
    seen: dict[str, Counter[tuple[str, str]]] = {}
    algorithms = ALGORITHMS if args.algorithms == "hand" else {}
    for case in cases(comm.Get_size()):
        if case.strategy in args.strategy:
            row, calls = run_case(comm, case, algorithms, args.device)
            rows.append(row)
            seen.setdefault(case.strategy, Counter()).update(calls)
    if comm.Get_rank() == 0:
        judged = verdicts(seen)
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "audit.md").write_text(report(rows, judged), encoding="utf-8")
        with (args.output / "audit.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
        for name, _, primitives, verdict, _ in judged:
            print(f"{name}: {verdict}{f' (seen: {primitives})' if primitives else ''}")
        for row in rows:
            if not row.ok:
                print(f"{row.strategy} {row.variant} on {row.mesh}: {row.traffic}; {row.results}; {row.moved}")
        print(f"{sum(row.ok for row in rows)} of {len(rows)} steps agree; {args.output / 'audit.md'}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    prepare()  # what MPI reads when it starts
    sys.exit(main())
