"""What does not fit is refused with the arithmetic, by traffic and step alike."""

from dataclasses import replace

import pytest

from strategies import context, data, expert, hybrid, pipeline, sequence, sharded, tensor, ulysses
from strategies.cases import dense, job_of, mixed
from strategies.mesh import Mesh
from strategies.models import MODELS
from strategies.traffic import Job


class LoneWire:
    """A wire of a mesh that this process is only one rank of; enough for what is refused before any call."""

    rank = 0

    def __init__(self, mesh):
        self.mesh = mesh

    def placed(self, values):
        return values

    def coordinate(self, axis):
        return self.mesh.coordinate(axis, 0)


JOB = job_of(dense(2))


@pytest.mark.parametrize(
    ("module", "spec", "job", "message"),
    [
        (tensor, "tp=3", JOB, r"4 heads do not divide by tp=3: 4 = 3·1 \+ 1; take a multiple of 3, such as 3 or 6"),
        (tensor, "tp=4", job_of(dense(2, kv_heads=2)), r"2 key/value heads do not divide by tp=4: 2 = 4·0 \+ 2"),
        (sequence, "tp=4", job_of(dense(4), seq=6), r"6 tokens of a rank do not divide by tp=4: 6 = 4·1 \+ 2"),
        (context, "cp=3", JOB, r"8 tokens do not divide by cp·ulysses = 3·1: 8 = 3·2 \+ 2"),
        (
            context, "cp=4", replace(JOB, seq=12, variant="ring-zigzag"),
            r"12 tokens do not divide by .*2·4·1.*: 12 = 8·1 \+ 4",
        ),
        (context, "cp=5", replace(JOB, variant="ring-striped"), r"8 tokens do not divide by cp·ulysses = 5·1"),
        (ulysses, "ulysses=8", JOB, r"4 heads do not divide by ulysses=8: 4 = 8·0 \+ 4"),
        (
            ulysses, "ulysses=2", job_of(dense(6, kv_heads=3)),
            r"3 key/value heads do not divide by ulysses=2: 3 = 2·1 \+ 1",
        ),
        (
            ulysses, "ulysses=3", job_of(dense(3, kv_heads=2)),
            r"3 Ulysses ranks do not divide by 2 key/value heads",
        ),
        (hybrid, "tp=2,ulysses=4", job_of(dense(2)), r"2 heads do not divide by ulysses=4"),
        (expert, "ep=3", job_of(mixed(2)), r"4 experts do not divide by ep=3: 4 = 3·1 \+ 1"),
        (expert, "etp=3", job_of(mixed(2)), r"4 inner width of an expert do not divide by etp=3"),
        (expert, "ep=2", JOB, "model audit-dense has no experts; take one that has"),
        (pipeline, "pp=4", JOB, r"pp·virtual_stages = 4·1 = 4 chunks of 2 layers leave some empty"),
        (
            pipeline, "pp=2", replace(JOB, variant="interleaved", micro_batches=3),
            r"3 micro-batches do not divide by pp=2 \(interleaved schedule\): 3 = 2·1 \+ 1",
        ),
        (pipeline, "pp=2", job_of(dense(2, layers=4), virtual_stages=2), "=2: 1f1b has one chunk a stage"),
        *((module, "tp=1", replace(JOB, variant="x"), "there is no variant 'x' here; take one of")
          for module in (data, sharded, tensor, sequence, context, ulysses, hybrid, pipeline)),
        (expert, "ep=1", job_of(mixed(2), variant="x"), "there is no variant 'x' here; take one of dropless"),
    ],
)  # fmt: skip
def test_refusals_say_the_arithmetic(module, spec, job, message):
    mesh = Mesh(spec, "megatron-expert" if "etp" in spec else "megatron")
    with pytest.raises(ValueError, match=message):
        list(module.traffic(job, mesh, 0))
    with pytest.raises(ValueError, match=message):
        module.step(job, LoneWire(mesh))


@pytest.mark.parametrize("module", [data, sharded, tensor, sequence, context, ulysses, pipeline])
def test_steps_refuse_axes_that_they_know_nothing_to_do_with(module):
    name = module.__name__.removeprefix("strategies.")
    with pytest.raises(ValueError, match=rf"the step of {name} runs on .* nothing to do with ep=2; take a mesh"):
        module.step(JOB, LoneWire(Mesh("ep=2")))


def test_weights_that_do_not_divide_are_refused_by_the_step():
    with pytest.raises(ValueError, match=r"7 rows or columns of layer0\.mlp\.gate do not divide by tp=2"):
        tensor.step(job_of(dense(2, ffn=7)), LoneWire(Mesh("tp=2")))


def test_latent_attention_is_not_described_for_tensor_parallelism():
    with pytest.raises(ValueError, match="tp=2: model deepseek-v3 has latent attention"):
        list(tensor.traffic(Job(MODELS["deepseek-v3"]), Mesh("tp=2"), 0))


@pytest.mark.parametrize("spec", ["tp=16", "cp=16", "ulysses=16", "ep=16", "dp=16", "tp=4,cp=2,dp=2"])
def test_every_strategy_applies_to_the_tiny_model(spec):
    mesh = Mesh(spec)
    for module in (data, sharded, tensor, sequence, context, ulysses, pipeline, expert):
        for rank in (0, 15):
            list(module.traffic(Job(MODELS["tiny"], variant=""), mesh, rank))
