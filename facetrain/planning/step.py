"""The plan of a training step: one chain of backbone layers and head, searched as a whole.

    plan = plan_step(problem)
    plan.found.outcome.time_us, plan.found.outcome.peak_bytes
    plan.rows["empirical best"]             # a `Found`, or why it does not fit

Training can run three families of partition: weights on all devices, optimizer state cut (ZeRO-1),
or weights cut too and gathered, each layer keeping or re-gathering them (ZeRO-2/3). Each family is
one search, and so is each number of micro-batches that the user allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from facetrain.distributed.gradients import DEFAULT_BUCKET_BYTES
from facetrain.planning.head import eager_option, head_options
from facetrain.planning.layers import BackboneModel
from facetrain.planning.problem import IMAGE_CHANNELS, Problem
from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.partition.chain import Chain, Conversion, Option, Stage
from memopt.partition.comparisons import COMPARISONS
from memopt.partition.comparisons.rule import fastest
from memopt.partition.layers import ALL_KEPT, Layer, run_of
from memopt.partition.search import Found, Front, search
from memopt.partition.strategies import STRATEGIES, Setting, convert
from memopt.units import format_bytes

FAMILIES: dict[str, frozenset[str]] = {
    "weights on all devices": frozenset({"replicated"}),
    "ZeRO-1": frozenset({"zero1"}),
    "ZeRO-2/3": frozenset({"zero2", "zero3"}),
}
"""Strategies of the backbone that training can mix."""
EAGER = "arcface_torch-like (eager logits)"
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_IMAGE_SIZE = 112
_LONGEST_RUN = 8
_WORTH_IT = 0.01
_WHOLE_WEIGHTS = ("replicated", "zero1")


@dataclass(frozen=True)
class StepPlan:
    """What was planned.

    Attributes:
        problem: for which.
        found: the fastest plan that fits.
        family: of `FAMILIES`.
        micro_batches: passes a step is cut into.
        chain: of `found`.
        rows: each strategy to compare with: what it finds, or why it finds nothing.
    """

    problem: Problem
    found: Found
    family: str
    micro_batches: int
    chain: Chain
    rows: dict[str, Found | MemoptError]


class Planner:
    """Plans one problem; traces its backbone once."""

    def __init__(self, problem: Problem, backbone: BackboneModel | None = None) -> None:
        self.problem = problem
        self.backbone = backbone or BackboneModel(problem)
        self._chains: dict[int, Chain] = {}

    def best(self) -> tuple[Found, str, int]:
        """The fastest plan that fits and that training can run; its family and micro-batches.

        Raises:
            BudgetTooSmallError: there is none; names the least budget, and what takes it.
        """
        best: tuple[Found, str, int] | None = None
        least: list[tuple[int, Found]] = []
        for micro_batches in self._micro_batches():
            for family, front in self._fronts(micro_batches):
                try:
                    found = front.best(self.problem.memory_bytes)
                except BudgetTooSmallError as error:
                    least.append((error.least_bytes, front.least()))
                    continue
                # Simpler ways come first, and stay unless another is worth its trouble.
                if best is None or (
                    found.outcome.time_us < (1 - _WORTH_IT) * best[0].outcome.time_us
                ):
                    best = found, family, micro_batches
        if best is None:
            least_bytes, smallest = min(least, key=lambda item: item[0])
            raise BudgetTooSmallError(self._binds(smallest), least_bytes)
        return best

    def fits(self) -> bool:
        """Whether any plan fits."""
        return any(
            front.least().outcome.peak_bytes <= self.problem.memory_bytes
            for micro_batches in self._micro_batches()
            for _, front in self._fronts(micro_batches)
        )

    def compare(self) -> dict[str, Found | MemoptError]:
        """What other strategies make of the same chain, and arcface_torch's kernel of its own."""
        micro_batches = self.problem.config.optim.micro_batches
        chain = self.chain(micro_batches)
        budget = self.problem.memory_bytes
        rows: dict[str, Found | MemoptError] = {}
        loss = Stage("loss", (eager_option(self.problem, self.setting(), micro_batches),))
        eager = replace(chain, stages=(*chain.stages[:-1], loss))
        eager_rule = partial(fastest, layers="replicated", ways=[ALL_KEPT], loss=["eager"])
        for name, one_chain, rule in (
            (EAGER, eager, eager_rule),
            *((name, chain, rule) for name, rule in COMPARISONS.items()),
        ):
            try:
                rows[name] = rule(one_chain, budget)
            except MemoptError as error:
                rows[name] = error
        return rows

    def setting(self) -> Setting:
        """Of all strategies; what traffic hides behind follows from data parallelism."""
        problem = self.problem
        plain = Setting(problem.cluster, problem.state_ratio)
        layers = self.backbone.at(problem.rows)
        sent_us = sum(
            plain.collectives.all_reduce(layer.weight_bytes, plain.everyone).us for layer in layers
        )
        backward_us = sum(layer.backward_us for layer in layers)
        hidden = min(1.0, problem.cluster.overlap * backward_us / sent_us) if sent_us else 0.0
        return replace(plain, hidden_share=hidden)

    def chain(self, micro_batches: int) -> Chain:
        """Layers and loss with all their options."""
        if micro_batches not in self._chains:
            self._chains[micro_batches] = self._make_chain(micro_batches)
        return self._chains[micro_batches]

    def _micro_batches(self) -> Sequence[int]:
        allowed = self.problem.config.optim.micro_batches
        if "micro-batches" not in self.problem.may_change:
            return (allowed,)
        rows = self.problem.rows
        more = [m for m in _MICRO_BATCHES if m > allowed and rows % m == 0 and rows // m >= 2]
        return [allowed, *more]

    def _fronts(self, micro_batches: int) -> list[tuple[str, Front]]:
        chain = self.chain(micro_batches)
        # Weights that come and go within a step are not gathered again for each micro-batch.
        names = (
            FAMILIES if micro_batches == 1 and self.problem.num_ranks > 1 else list(FAMILIES)[:1]
        )
        return [
            (name, search(chain, partial(_is_of, FAMILIES[name], chain.stages[-1])))
            for name in names
        ]

    def _make_chain(self, micro_batches: int) -> Chain:
        problem, setting = self.problem, self.setting()
        rows = problem.rows_of_pass(micro_batches)
        layers = [_repeated(layer, micro_batches) for layer in self.backbone.at(rows)]
        stages = [
            Stage(
                layer.name,
                (
                    *_options(replace(layer, name=""), tuple(STRATEGIES), setting, micro_batches),
                    *_run_options(layers[number:], setting, micro_batches),
                ),
            )
            for number, layer in enumerate(layers)
        ]
        stages.append(Stage("loss", head_options(problem, setting, micro_batches)))

        def conversion(number: int, gives: str, takes: str) -> Conversion | None:
            return convert(layers[number].output_bytes, gives, takes, setting)

        images = rows * IMAGE_CHANNELS * _IMAGE_SIZE**2
        bucket = max(DEFAULT_BUCKET_BYTES, self.backbone.largest_weight_bytes)
        constant = 5 * images + 2 * self.backbone.buffer_bytes  # uint8 and fp32; a copy to undo
        if problem.num_ranks > 1:
            constant += min(bucket, self.backbone.weight_bytes)
        return Chain(tuple(stages), conversion, constant_bytes=constant)

    def _binds(self, smallest: Found) -> str:
        """What keeps a problem from fitting, in one line."""
        cost, problem = smallest.outcome, self.problem
        stages = self.chain(1).stages
        at = "the loss" if cost.at == len(stages) - 1 else f"{stages[cost.at].name}'s backward pass"
        parts = {
            "weights and optimizer state": cost.weight_bytes,
            "gradients": cost.gradient_bytes,
            "kept activations": cost.activation_bytes,
            "what is worked with": cost.work_bytes,
        }
        largest = max(parts, key=lambda name: parts[name])
        return (
            f"memory {format_bytes(problem.memory_bytes)}: the least for {problem.num_classes:,} "
            f"identities and {problem.rows} images a device is "
            f"{format_bytes(cost.peak_bytes, round_up=True)}, at {at}, of which {largest} "
            f"take {format_bytes(parts[largest])}"
        )


def plan_step(problem: Problem, *, compare: bool = True) -> StepPlan:
    """The fastest plan that fits, beside what other strategies find.

    Raises:
        BudgetTooSmallError: nothing fits; names the least budget and what binds.
    """
    planner = Planner(problem)
    found, family, micro_batches = planner.best()
    rows = planner.compare() if compare else {}
    return StepPlan(problem, found, family, micro_batches, planner.chain(micro_batches), rows)


def _is_of(family: frozenset[str], loss: Stage, option: Option) -> bool:
    return option.is_executable and (option.strategy in family or option in loss.options)


@lru_cache(maxsize=512)
def _options(
    layer: Layer, strategies: tuple[str, ...], setting: Setting, micro_batches: int
) -> tuple[Option, ...]:
    """A layer's options; layers that are alike share them, so it comes without its name."""
    made = [
        option
        for strategy in strategies
        for way in layer.ways
        if (option := STRATEGIES[strategy](layer, way, setting)) is not None
    ]
    if micro_batches == 1:
        return tuple(made)
    # Gradients of the first micro-batch are there while later ones run.
    return tuple(
        replace(
            option, resting_bytes=option.resting_bytes + option.gradient_bytes, gradient_bytes=0
        )
        for option in made
    )


def _run_options(layers: Sequence[Layer], setting: Setting, micro_batches: int) -> Iterator[Option]:
    """Runs of layers of which only the first input is kept; where weights are on every device."""
    for length in range(2, min(_LONGEST_RUN, len(layers)) + 1):
        run = run_of(layers[:length])
        for option in _options(replace(run, name=""), _WHOLE_WEIGHTS, setting, micro_batches):
            yield replace(option, span=length)


def _repeated(layer: Layer, times: int) -> Layer:
    """A layer that runs so many times in a step."""
    return replace(
        layer,
        forward_us=layer.forward_us * times,
        backward_us=layer.backward_us * times,
        ways=tuple(replace(way, recompute_us=way.recompute_us * times) for way in layer.ways),
    )
