"""The command line of the sweep: argument words in, one frozen `Options` out, or a UsageError."""

import argparse
import difflib
import itertools
import math
import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, NoReturn

from bench import __version__, strategy_options
from bench.groups import Split, parse_groups
from bench.library import name_of
from bench.rows import is_forced, is_nccl
from bench.sizes import geometric, parse_size
from bench.strategy_options import SHORT, StrategyOptions
from bench.usage import UsageError
from collectives.operations import DTYPES, OPERATIONS

ACCUMULATE = ("float32",)
IN_PLACE = {"no": (False,), "yes": (True,), "both": (False, True)}
DEFAULT = (
    *("broadcast", "scatter", "gather", "reduce", "allgather", "allreduce", "reduce_scatter", "alltoall"),
    *("sendrecv", "barrier"),
)
"""What is swept unless primitives are named; `all` names every one."""
DEVICES = ("auto", "cpu", "cuda")
TRANSPORTS = ("auto", "staged", "direct", "window")
CADENCES = ("isolated", "streaming")
SYNCS = ("barrier", "deadline")
MEMORIES = ("plain", "registered", "shared")

EXAMPLES = """\
examples:
  mpirun -n 8 python -m bench.sweep
  mpirun -n 4 python -m bench.sweep allreduce -b 1K -e 64M -f 4
  mpirun -n 4 python -m bench.sweep broadcast -a binomial,chain:segments=16 -d float32,float64
  mpirun -n 4 python -m bench.sweep allreduce -a all,native:all
  mpirun -n 8 python -m bench.sweep --strategy all --model llama3-8b --mesh tp=2,cp=2,dp=2 --scale-bytes 1/64

SIZE is the whole vector in bytes, as nccl-tests counts it: 8, 4K, 1.5M, 2GiB, in powers of 1024.
"""


@dataclass(frozen=True)
class Options:
    """What to sweep and how, checked."""

    show: Literal["sweep", "list", "help", "version"]  # what the command is to do
    primitives: tuple[str, ...]
    min_bytes: int
    max_bytes: int
    factor: float
    algorithms: tuple[str, ...]  # as `chain:segments=16`; empty: all of each primitive
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    root: int
    accumulate: str | None  # dtype of partial results by hand; None: that of the data
    in_place: tuple[bool, ...]  # whether out of place, in place, or both
    memories: tuple[str, ...]  # where buffers lie: ordinary arrays, registered ones, or one result for all of a node
    ppn: int | None  # ranks of a pretended node; None: nodes as MPI sees them
    iters: int  # samples of each contender at a point
    warmup: int  # calls of each contender before its first sample
    max_seconds: float  # of sampling at a point; 0: no limit
    precision: float  # of the median, relative, at which a contender has samples enough; 0: never
    cadence: str  # isolated: each call has a start of its own; streaming: many calls back to back
    sync: str  # how a sample begins: behind a barrier, or at an agreed deadline
    rotate: int  # sets of buffers through which samples walk
    hang_seconds: float  # without any progress, after which the job ends; 0: never
    check: bool
    memory_limit: int | None  # bytes of buffers that a point may take on a node; None: most of what is free
    output: Path | None  # None: a new folder under results/
    resume: Path | None  # the folder of a run to be completed
    samples: bool  # whether every sample of every rank is written
    device: str
    transport: str  # how messages between GPUs go
    plots: bool
    quiet: bool
    strategies: StrategyOptions | None  # training steps to replay besides
    groups: tuple[Split, ...]  # into which all ranks are split; empty: they are one group

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes to measure, in bytes."""
        return geometric(self.min_bytes, self.max_bytes, self.factor)


def parse(argv: Sequence[str], nranks: int, algorithms: Mapping[str, Collection[str]]) -> Options:
    """Return the options in the words `argv` of a sweep of `nranks` ranks.

    algorithms: the names of each primitive's contenders, native ones included; primitives in the order in which all
    of them are swept. A name before an underscore stands for all primitives that begin so (`sendrecv`).

    Raises UsageError for whatever can be found wrong without MPI, a file system or a device.
    """
    words = _words(argv)
    if words.help or words.version:
        words = _words(["--help"] if words.help else ["--version"])  # whatever else was typed does not matter
    strategies = strategy_options.parse(words)
    chosen = () if strategies and not words.primitives else _primitives(words.primitives, tuple(algorithms))
    splits = () if words.groups is None else parse_groups(words.groups, nranks)
    if not words.primitives and not words.algorithm and not splits:
        strategies = strategies or SHORT
    contenders = [name for primitive in (algorithms if strategies else chosen) for name in algorithms[primitive]]
    options = Options(
        show="help" if words.help else "version" if words.version else "list" if words.list else "sweep",
        primitives=chosen,
        min_bytes=parse_size(words.min_bytes, "--min-bytes"),
        max_bytes=parse_size(words.max_bytes, "--max-bytes"),
        factor=_number(words.factor, "--factor", "must be a number above 1, such as 2 or 8"),
        algorithms=_algorithms(words.algorithm, contenders),
        dtypes=_known(_listed(words.dtype), "--dtype", "dtype", DTYPES),
        ops=_known(_listed(words.op), "--op", "op", OPERATIONS),
        root=_integer(words.root, "--root", 0, nranks - 1, f"the ranks of this run are 0 to {nranks - 1}"),
        accumulate=None
        if words.accumulate is None
        else _known([words.accumulate], "--accumulate", "dtype", ACCUMULATE)[0],
        in_place=IN_PLACE[_known([words.in_place], "--in-place", "choice", IN_PLACE)[0]],
        memories=_known(_listed(words.memory), "--memory", "memory", MEMORIES),
        ppn=None
        if words.ppn is None
        else _integer(words.ppn, "--ppn", 1, nranks, f"must be 1 to {nranks} ranks a node"),
        iters=_integer(words.iters, "--iters", 1, None, "must be a whole number, 1 or more"),
        warmup=_integer(words.warmup, "--warmup", 0, None, "must be a whole number, 0 or more"),
        max_seconds=_number(words.max_seconds, "--max-seconds", "must be a number of seconds; 0 is no limit", least=0),
        precision=_number(words.precision, "--precision", "must be a share such as 0.02; 0 is no limit", least=0),
        cadence=_known([words.cadence], "--cadence", "cadence", CADENCES)[0],
        sync=_known([words.sync], "--sync", "sync", SYNCS)[0],
        rotate=_integer(words.rotate, "--rotate", 1, None, "must be a whole number, 1 or more"),
        hang_seconds=_number(words.hang_seconds, "--hang-seconds", "must be seconds; 0 never ends a job", least=0),
        check=bool(_integer(words.check, "--check", 0, 1, "must be 1 to check every result or 0 not to")),
        memory_limit=None if words.memory_limit is None else parse_size(words.memory_limit, "--memory-limit"),
        output=None if words.output is None else Path(words.output),
        resume=None if words.resume is None else Path(words.resume),
        samples=words.samples,
        device=_known([words.device], "--device", "device", DEVICES)[0],
        transport=_known([words.transport], "--transport", "transport", TRANSPORTS)[0],
        plots=not words.no_plots,
        quiet=words.quiet,
        strategies=strategies,
        groups=splits,
    )
    if splits:
        _check_groups(options, words.root, nranks)
    if words.strategy is not None:
        _check_strategies(options)
    if options.resume and options.output:
        raise UsageError("--output", options.output, "--resume writes to the folder that it names: leave one out")
    geometric(options.min_bytes, options.max_bytes, options.factor)  # raises where they give no sweep
    return options


def _check_strategies(options: Options) -> None:
    """Raise UsageError for what a replay of strategies does not have."""
    if options.resume:
        raise UsageError("--resume", options.resume, "a replay of strategies cannot be resumed: start it anew")
    memory = None if options.memories == ("plain",) else ",".join(options.memories)
    for option, given in (("--memory", memory), ("--ppn", options.ppn)):
        if given is not None:
            remedy = "a replay of strategies has plain memory and nodes as they are: leave it out"
            raise UsageError(option, given, remedy)


def _check_groups(options: Options, root: str, nranks: int) -> None:
    """Raise UsageError for what does not go with groups."""
    least = min(nranks // split.ngroups(nranks) for split in options.groups)
    if options.root >= least:
        raise UsageError("--root", root, f"a group of --groups has ranks 0 to {least - 1}")
    without = {
        "--resume": options.resume,
        "--samples": options.samples or None,
        "--ppn": options.ppn,
        "--memory": None if options.memories == ("plain",) else ",".join(options.memories),
    }
    for option, given in without.items():
        if given is not None:
            raise UsageError(option, given, "does not go with --groups, which it cannot tell apart: leave one out")
    if options.strategies:
        remedy = "does not go with --groups: its groups are those of --mesh"
        raise UsageError("--strategy", ",".join(options.strategies.names), remedy)


def parse_or_exit(argv: Sequence[str], rank: int, nranks: int, algorithms: Mapping[str, Collection[str]]) -> Options:
    """Parse as `parse` does; answer --help and --version with status 0 and what cannot be used with 2.

    Every rank exits with the same status and rank 0 alone prints: the one place of this module that does either.
    """
    try:
        options = parse(argv, nranks, algorithms)
    except UsageError as error:
        if rank == 0:
            print(f"bench.sweep: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    answers = {"help": _parser().format_help().rstrip(), "version": f"collbench {__version__}"}
    if options.show in answers:
        if rank == 0:
            print(answers[options.show], flush=True)
        sys.exit(0)
    return options


def default_output(now: datetime, host: str, nranks: int) -> Path:
    """Return `results/<UTC time>-<host>-n<ranks>`, whose names sort by time. `now` knows its time zone."""
    utc = now.astimezone(timezone.utc)
    return Path("results") / f"{utc:%Y%m%dT%H%M%SZ}-{host.split('.')[0]}-n{nranks}"


def check_output(folder: Path) -> None:
    """Raise UsageError where `folder` cannot become the folder of a new run; make nothing.

    Asks the file system, so one rank does it for all.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError("--output", folder, "is a file: name a new folder")
        if folder.exists() and any(folder.iterdir()):
            raise UsageError("--output", folder, "exists and is not empty: name a new folder or empty this one")
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        # Permission bits say little (root, read-only mounts, quotas); a nameless file that is gone at once says all.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        remedy = f"cannot be written, {error.strerror}: name a folder where you may write"
        raise UsageError("--output", folder, remedy) from error


class _Parser(argparse.ArgumentParser):
    """Splits words into options and raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise for an option without its value, or with one it does not take."""
        match = re.fullmatch(r"argument (?:-\w/)?(?P<option>-[\w-]+): (?P<reason>.*)", message)
        option, reason = (match["option"], match["reason"]) if match else ("the command line", message)
        raise UsageError(option, "", f"{reason}; --help shows how it is used")


def _words(argv: Sequence[str]) -> argparse.Namespace:
    words, unknown = _parser().parse_known_intermixed_args(argv)
    if unknown:
        options = ["--" + name.replace("_", "-") for name in vars(words)]
        raise UsageError(
            "bench.sweep", unknown[0], f"{_nearest(unknown[0], options)}--help lists them", "unknown option"
        )
    return words


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _known(values: Collection[str], option: str, what: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the values, each once. Raises UsageError for one that is not known."""
    for value in values:
        if value not in known:
            remedy = f"{_nearest(value, known)}known: {', '.join(dict.fromkeys(known))}"
            raise UsageError(option, value, remedy, f"unknown {what}")
    return tuple(dict.fromkeys(values))


def _nearest(value: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(value, known, 1, cutoff=0.7)
    return f"did you mean {nearest[0]}? " if nearest else ""


def _primitives(words: Collection[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the primitives that `words` name, a family's name standing for its members; `DEFAULT` without words."""
    if "all" in words:
        return known
    families = {name.partition("_")[0] for name in known} - set(known)
    if not words:
        return (
            tuple(name for name in known if name in DEFAULT or name.partition("_")[0] in families & set(DEFAULT))
            or known
        )
    _known(words, "PRIMITIVE", "primitive", [*known, *(one for one in families if f"{one}_" in " ".join(known))])
    members = [name for word in words for name in known if name == word or (word in families and name.startswith(word))]
    return tuple(dict.fromkeys(members)) or known


def _algorithms(text: str, contenders: Collection[str]) -> tuple[str, ...]:
    """Return the algorithms in `text`, each with its parameters, one for each of `radix=2|4`.

    A comma separates algorithms, and parameters where what follows has no name: `two_level:inner=ring,outer=ring`.
    """
    specifications: list[str] = []
    for word in _listed(text) if text else []:
        if specifications and "=" in word and ":" not in word.partition("=")[0]:
            specifications[-1] += f":{word}"
        else:
            specifications.append(word)
    own = [one for one in contenders if is_forced(one)]
    forced = [name_of(one) for one in specifications if is_forced(one)]
    if own:  # where the library cannot be told what to run, what is asked of it is left out, with a note
        _known(forced, "--algorithm", "algorithm", own)
    by_hand = [one if is_nccl(one) else one.partition(":")[0] for one in specifications if not is_forced(one)]
    _known(by_hand, "--algorithm", "algorithm", [*(one for one in contenders if not is_forced(one)), "all"])
    return tuple(dict.fromkeys(each for one in specifications for each in _alternatives(one)))


def _alternatives(specification: str) -> list[str]:
    """Return `specification` once for each combination of values that its parameters give with `|`."""
    choices = []
    for part in specification.split(":"):
        key, equals, values = part.partition("=")
        choices.append([f"{key}={value}" for value in values.split("|")] if equals else [part])
    return [":".join(parts) for parts in itertools.product(*choices)]


def _number(text: str, option: str, remedy: str, least: float = -math.inf) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise UsageError(option, text, remedy)
    return number


def _integer(text: str, option: str, least: int, most: int | None, remedy: str) -> int:
    if not re.fullmatch("-?[0-9]{1,18}", text) or int(text) < least or (most is not None and int(text) > most):
        raise UsageError(option, text, remedy)
    return int(text)


def _parser() -> _Parser:
    # Values stay text here, so that every one of them is checked, and refused in the same words, by `parse`.
    parser = _Parser(
        usage="mpirun -n RANKS python -m bench.sweep [PRIMITIVE ...] [options]",
        description="Measure collectives, native and hand-written, over a sweep of sizes, and check every result.",
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32),
        allow_abbrev=False,
        add_help=False,
    )
    what, sizes, how, output = map(
        parser.add_argument_group, ("what to measure", "message sizes", "how to measure", "output")
    )

    def valued(group: argparse._ArgumentGroup, flags: str, metavar: str, default: str, meaning: str) -> None:
        group.add_argument(
            *flags.split(), metavar=metavar, default=default, help=f"{meaning} (default: {default or 'all'})"
        )

    what.add_argument(
        "primitives", nargs="*", metavar="PRIMITIVE", help=f"such as allreduce, or all (default: {', '.join(DEFAULT)})"
    )
    names = (
        "contenders, with parameters as in chain:segments=16; native, the baseline, is measured in any case; "
        "native:ring, native:all: the library's own (python -m bench.native lists them), and ours of the same name; "
        "on GPUs nccl, nccl:ring, nccl:tree"
    )
    valued(what, "-a --algorithm", "NAME,...", "", names)
    valued(what, "-d --dtype", "TYPE,...", "float32", ", ".join(DTYPES))
    valued(what, "--op", "OP,...", "sum", f"how values are combined: {', '.join(OPERATIONS)}")
    valued(what, "-r --root", "RANK", "0", "of rooted primitives")
    what.add_argument(
        "--groups",
        metavar="SPLIT",
        help="split all ranks, as 'mod 4' or 'div 4', and measure one group alone and all at once (default: no split)",
    )
    what.add_argument(
        "--accumulate",
        metavar="TYPE",
        help="float32: partial results of floats of 16 and 8 bits are kept and sent so by hand (default: as they are)",
    )
    valued(what, "--in-place", "CHOICE", "no", "whether input and output share a buffer: no, yes or both")
    valued(what, "--device", "DEVICE", "auto", "where buffers live: cpu, cuda, or auto for cuda where there is one")
    ways = "between GPUs: staged through the host, direct from GPU memory, window on peers', or auto for what works"
    valued(what, "--transport", "NAME", "auto", ways)
    memories = "plain arrays, registered ones (collectives.alloc), or shared: registered, one result for all of a node"
    valued(what, "--memory", "NAME,...", "plain", memories)
    what.add_argument(
        "--ppn", metavar="K", help="pretend that so many ranks make a node (default: the nodes that there are)"
    )
    valued(sizes, "-b --min-bytes", "SIZE", "8", "the first size")
    valued(sizes, "-e --max-bytes", "SIZE", "16M", "no size is above it; measured where the factor leads to it")
    valued(sizes, "-f --factor", "X", "8", "from each size to the next")
    valued(how, "-n --iters", "N", "50", "timed calls of each contender at a point")
    valued(how, "-w --warmup", "N", "3", "calls of each contender before the first timed one")
    valued(how, "--max-seconds", "S", "0.5", "ends the timed calls of a point, even before --iters; 0 never does")
    valued(how, "--precision", "P", "0.02", "a contender whose median is known to within this share has samples enough")
    valued(how, "--cadence", "NAME", "isolated", "isolated: one call a sample; streaming: calls back to back, averaged")
    valued(how, "--sync", "NAME", "barrier", "how a sample begins: barrier, or deadline, an instant that all agree on")
    valued(how, "--rotate", "K", "1", "walk through K sets of buffers, so that caches are cold")
    valued(how, "--hang-seconds", "S", "300", "end a job that does not get on for so long, with every rank's stack")
    valued(how, "-c --check", "0|1", "1", "compare every contender's result, before and after it is timed")
    how.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="what a point's buffers may take on a node; larger points are skipped (default: 80%% of what is free)",
    )
    strategy_options.add_arguments(parser.add_argument_group("training steps"))
    output.add_argument(
        "-o", "--output", metavar="DIR", help="a new or empty folder (default: results/<UTC time>-<host>-n<ranks>)"
    )
    output.add_argument("--resume", metavar="DIR", help="complete the run in this folder, made with the same options")
    for flags, meaning in (
        ("--samples", "write every sample of every rank to samples.csv.gz"),
        ("--no-plots", "leave the pictures to python -m bench.report"),
        ("-q --quiet", "no progress line and no table, only the files"),
        ("--list", "list primitives and their algorithms, measure nothing"),
        ("--version", "print the version, measure nothing"),
        ("-h --help", "print this, measure nothing"),
    ):
        output.add_argument(*flags.split(), action="store_true", help=meaning)
    return parser
