"""Steps broken on purpose, one fault each, are caught: by the numbers, by the calls, or by both.

Each mutation keeps the ranks in step with each other, so that what is tested is the finding and not a deadlock.
"""

from dataclasses import replace

import numpy as np
import pytest

from strategies import audit, context, data, expert, sequence, sharded, tensor, tensors, ulysses
from strategies.audit import ALGORITHMS, run_case
from strategies.cases import STRATEGIES, Case, dense, job_of, mixed
from strategies.mesh import Mesh
from strategies.transformer import Weights

pytestmark = pytest.mark.mpi

DENSE, MIXED = job_of(dense(4)), job_of(mixed(4))
NUMBERS, CALLS = "numbers", "calls"
MUTATIONS = []


def mutation(strategy, spec, *caught_by, job=DENSE, order="megatron"):
    """Register a mutation of a strategy on a mesh of 4 ranks, with what must catch it."""

    def register(mutate):
        MUTATIONS.append(pytest.param(strategy, spec, order, job, mutate, caught_by, id=mutate.__name__))
        return mutate

    return register


@mutation("tensor", "tp=4", NUMBERS, CALLS)
def missing_sum_after_a_pair(patch):
    patch.setattr(tensor.TensorParallel, "row", tensor.Linear.row)


@mutation("tensor", "tp=4", NUMBERS, CALLS)
def missing_sum_of_the_input_gradient(patch):
    patch.setattr(tensor.TensorParallel, "column", tensor.Linear.column)


@mutation("tensor", "tp=4", NUMBERS, CALLS)
def missing_highest_logit(patch):
    class Mutant(audit.Wire):
        def allreduce(self, axes, values, op="sum", ends=False):
            return values if op == "max" else super().allreduce(axes, values, op, ends)

    patch.setattr(audit, "Wire", Mutant)


@mutation("tensor", "tp=4", CALLS)
def sum_instead_of_highest_logit(patch):
    """Any shift of the logits gives the same loss, so that only the calls tell."""

    class Mutant(audit.Wire):
        def allreduce(self, axes, values, op="sum", ends=False):
            return super().allreduce(axes, values, "sum", ends)

    patch.setattr(audit, "Wire", Mutant)


@mutation("sequence", "tp=4", CALLS)
def missing_gather_in_the_backward_pass(patch):
    """What was gathered forward is kept: the same numbers, but the memory that was to be saved is used."""
    original = sequence.SequenceParallel.column

    def column(self, x, *weights):
        kept = self.gather(x)
        self.gather, gather = (lambda _: kept), self.gather
        ys, back = original(self, x, *weights)
        self.gather = gather

        def mutant_back(*dys):
            self.gather = lambda _: kept
            result = back(*dys)
            self.gather = gather
            return result

        return ys, mutant_back

    patch.setattr(sequence.SequenceParallel, "column", column)


@mutation("sequence", "tp=4", NUMBERS, CALLS)
def missing_sum_of_norm_gradients(patch):
    patch.setattr(sequence.SequenceParallel, "synchronise", lambda self, gradients: None)


@mutation("data", "dp_shard=2,dp_replicate=2", NUMBERS, CALLS, order="torch")
def wrong_group(patch):
    class Mutant(audit.Wire):
        def allreduce(self, axes, values, op="sum", ends=False):
            return super().allreduce("dp_shard", values, op, ends)

    patch.setattr(audit, "Wire", Mutant)


@mutation("data", "dp=4", NUMBERS, CALLS)
def missing_broadcast(patch):
    patch.setattr(audit.Wire, "broadcast", lambda self, axes, values, root=0: values)


@mutation("data", "dp=4", NUMBERS, CALLS)
def gradients_summed_after_every_micro_batch(patch):
    original = data.BucketedWeights.ready

    def ready(self, names, last):
        original(self, names, True)
        if not self._waiting and not last:
            self._waiting = set(self.share.names)
            self._closed = dict.fromkeys(self._closed, 0)

    patch.setattr(data.BucketedWeights, "ready", ready)


@mutation("sharded", "dp=4", NUMBERS, CALLS)
def missing_gather_of_sharded_weights(patch):
    original = sharded.FsdpWeights.fetch

    def fetch(self, unit):
        return Weights.fetch(self, unit) if self.wire.phase == "backward" else original(self, unit)

    patch.setattr(sharded.FsdpWeights, "fetch", fetch)


@mutation("sharded", "dp_shard=2,dp_replicate=2", NUMBERS, CALLS, order="torch")
def missing_sum_over_replicas(patch):
    patch.setattr(sharded.ShardedWeights, "sum_over_replicas", lambda self, shard: shard)


@mutation("sharded", "dp=4", NUMBERS, job=replace(DENSE, variant="zero1"))
def wrong_shard_updated(patch):
    original = sharded.ShardedWeights.shard

    def shard(self, vector):
        return original(self, np.roll(vector.reshape(self.nranks, -1), 1, axis=0))

    patch.setattr(sharded.ShardedWeights, "shard", shard)


@mutation("context", "cp=4", NUMBERS, CALLS)
def gradients_of_keys_that_do_not_come_home(patch):
    class Mutant(audit.Wire):
        shifts = 0

        def shift(self, axis, values):
            if self.phase == "backward":
                self.shifts += 1
                if self.shifts % (2 * self.mesh.length("cp") - 1) == 0:
                    return values
            return super().shift(axis, values)

    patch.setattr(audit, "Wire", Mutant)


@mutation("context", "cp=4", NUMBERS, job=replace(DENSE, variant="ring-zigzag"))
def places_of_another_cut(patch):
    original = context.positions_of
    patch.setattr(context, "positions_of", lambda mesh, rank, seq, split, phase: original(mesh, rank, seq))


@mutation("context", "cp=4", NUMBERS)
def wrong_direction_around_the_ring(patch):
    """Every rank takes what came for the block below, when it is that above."""

    def visible(self, k, v):
        for distance, (block, _) in enumerate(original(self, k, v)):
            yield block, self._visible[(self.place + distance) % self.nranks]

    original = context.RingAttention._around
    patch.setattr(context.RingAttention, "_around", visible)


@mutation("context", "cp=4", NUMBERS)
def outputs_merged_without_their_weights(patch):
    patch.setattr(
        tensors, "merge", lambda output, logs, more, more_logs: (output + more, np.logaddexp(logs, more_logs))
    )


@mutation("ulysses", "ulysses=4", NUMBERS)
def heads_transposed(patch):
    """Head i of rank r is taken for head r of rank i, of queries alone."""
    original = ulysses.UlyssesAttention.exchange

    def exchange(self, arrays, to_heads):
        if to_heads and len(arrays) == 3:
            q = arrays[0]
            b, s, _a, d = q.shape
            arrays = [q.reshape(b, s, self._nranks, -1, d).swapaxes(2, 3).reshape(q.shape), *arrays[1:]]
        return original(self, arrays, to_heads)

    patch.setattr(ulysses.UlyssesAttention, "exchange", exchange)


@mutation("ulysses", "ulysses=4", NUMBERS, job=job_of(dense(4, kv_heads=2)))
def copies_of_heads_in_the_wrong_order(patch):
    """0 1 0 1 instead of 0 0 1 1."""

    def call(self, q, k, v):
        turned = [x.repeat(2, axis=2)[:, :, [0, 2, 1, 3]] for x in (k, v)]
        output, back = original(self, q, *turned)

        def mutant_back(dout):
            dq, *dturned = back(dout)
            return (dq, *(x[:, :, :2] + x[:, :, 2:] for x in dturned))

        return output, mutant_back

    original = ulysses.UlyssesAttention.__call__
    patch.setattr(ulysses.UlyssesAttention, "__call__", call)


@mutation("expert", "expert_dp=2,ep=2", "error", job=replace(MIXED, routing="zipf:1.5"), order="megatron-expert")
def counts_not_transposed(patch):
    patch.setattr(expert.CountedExchange, "combine", lambda self, rows: self.wire.alltoallv("ep", rows, self._counts))


@mutation("expert", "ep=4", NUMBERS, CALLS, job=MIXED)
def gradients_of_expert_weights_stay(patch):
    """The gradient of the weights with which experts are mixed is not sent back to their tokens."""
    original = expert.CountedExchange.combine

    def combine(self, rows):
        return np.zeros((len(self.order), 1)) if rows.shape[1] == 1 else original(self, rows)

    patch.setattr(expert.CountedExchange, "combine", combine)


@mutation("expert", "etp=2,ep=2", NUMBERS, CALLS, job=MIXED, order="megatron-expert")
def missing_sum_inside_experts(patch):
    def collect(self, rows):
        ends = np.cumsum(self._received)
        return np.split(rows, ends[:-1])[self.wire.coordinate("etp")]

    patch.setattr(expert.CountedExchange, "collect", collect)


@mutation("expert", "ep=4", NUMBERS, CALLS, job=replace(MIXED, variant="drop", routing="zipf:1.5"))
def tokens_not_dropped(patch):
    patch.setattr(expert, "within_capacity", lambda chosen, experts, capacity: np.ones(chosen.shape, bool))


@mutation("pipeline", "pp=4", NUMBERS, CALLS, job=job_of(dense(4, layers=4)))
def tied_embedding_not_summed(patch):
    class Mutant(audit.Wire):
        def allreduce(self, axes, values, op="sum", ends=False):
            return values if ends else super().allreduce(axes, values, op, ends)

    patch.setattr(audit, "Wire", Mutant)


@mutation("pipeline", "pp=4", NUMBERS, job=job_of(dense(4, layers=4), variant="gpipe"))
def micro_batches_exchanged(patch):
    """Backward, a stage takes the gradient of the one of two micro-batches for that of the other."""

    class Mutant(audit.Wire):
        def receive(self, axis, shape, source, tag=0):
            return super().receive(axis, shape, source, tag ^ 2 if self.phase == "backward" else tag)

    patch.setattr(audit, "Wire", Mutant)


@mutation("hybrid", "tp=2,dp=2", NUMBERS, CALLS)
def gradients_summed_over_the_wrong_axis(patch):
    class Mutant(audit.Wire):
        def allreduce(self, axes, values, op="sum", ends=False):
            return super().allreduce("tp" if self.phase == "backward" else axes, values, op, ends)

    patch.setattr(audit, "Wire", Mutant)


@pytest.mark.parametrize(("strategy", "spec", "order", "job", "mutate", "caught_by"), MUTATIONS)
def test_mutation_is_caught(comm, monkeypatch, strategy, spec, order, job, mutate, caught_by):
    if comm.Get_size() != 4:
        pytest.skip("mutations run on 4 ranks")
    case = Case(strategy, Mesh(spec, order), job)
    row, _ = run_case(comm, case, ALGORITHMS)
    assert row.ok, row
    mutate(monkeypatch)
    case = replace(case, mesh=Mesh(spec, order))
    if caught_by == ("error",):
        with pytest.raises(ValueError):
            run_case(comm, case, ALGORITHMS)
        return
    row, _ = run_case(comm, case, ALGORITHMS)
    assert (row.results != "equal") == (NUMBERS in caught_by), row
    assert (row.traffic != "equal") == (CALLS in caught_by), row
    assert not row.ok


def test_every_strategy_has_a_mutation():
    assert {one.values[0] for one in MUTATIONS} == set(STRATEGIES)
    assert len(MUTATIONS) >= 20
