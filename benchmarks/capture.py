"""What recording a training step costs, and whether its peaks agree: measured, recorded, fake.

    python benchmarks/capture.py

Networks are built here: a ResNet (bottlenecks, 3-4-6-3, channels_last), a transformer encoder, an
MLP. An overhead is the CPU time of a watched step less that of a plain one, fastest of interleaved
rounds each, divided by operators; one thread, fp32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from memopt.capture import CostTable, fake_copy, fingerprint, record, record_fake
from memopt.live_bytes import LiveBytes

MIB = 2**20


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al. 2016)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) + self.shortcut(x)).relu_()


def resnet(width: int = 32) -> nn.Module:
    """ResNet-50 at half its width."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    in_channels = width
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        for block in range(num_blocks):
            channels = width * 2**stage
            layers.append(Bottleneck(in_channels, channels, 2 if stage and not block else 1))
            in_channels = 4 * channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, 100)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def transformer(width: int = 192) -> nn.Module:
    """Six pre-norm encoder layers with dropout."""
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def mlp() -> nn.Module:
    """Twenty narrow layers: little work an operator, so that overhead shows."""
    return nn.Sequential(*[m for _ in range(20) for m in (nn.Linear(64, 64), nn.Tanh())])


def seconds(step: Callable[[], object]) -> float:
    """CPU time of one step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def compare(name: str, net: nn.Module, shape: tuple[int, ...], rounds: int) -> None:
    """Prints one row."""

    def images() -> Tensor:
        x = torch.randn(shape)
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x

    def step_of(net: nn.Module, x: Tensor) -> Callable[[], object]:
        def step() -> None:
            net.zero_grad()
            net(x).square().mean().backward()

        return step

    def build() -> tuple[Callable[[], object], list[nn.Module | Tensor]]:
        fake_net, fake_x = fake_copy(net), images()
        return step_of(fake_net, fake_x), [fake_net, fake_x]

    x = images()
    step = step_of(net, x)
    step()
    net.zero_grad()
    with LiveBytes() as live:
        step()

    def counted() -> None:
        with LiveBytes():
            step()

    watched: list[Callable[[], object]] = [
        step,
        counted,
        lambda: record(step, resting=[net, x]),
        lambda: record(step, resting=[net, x], copy_saved=True),
    ]
    times = [[seconds(run) for run in watched] for _ in range(rounds)]
    plain_s, *watched_s = (min(column) for column in zip(*times, strict=True))
    real = record(step, resting=[net, x])
    num_operators = len(real.graph.operators)
    overheads = [f"{(s - plain_s) * 1e6 / num_operators:6.1f} us" for s in watched_s]
    record_fake(build)  # imports
    fake_s = min(seconds(lambda: record_fake(build)) for _ in range(rounds))
    table = CostTable()
    calls = record_fake(build, calls=True).calls or ()
    timing_s = seconds(lambda: [table.cost_us(call) for call in calls])
    fake = record_fake(build, costs=table)
    peaks = [live.peak_bytes, real.graph.plain_peak_bytes(), fake.graph.plain_peak_bytes()]
    print(
        f"{name:12} {num_operators:9d} {plain_s * 1e3:7.0f} ms  {'  '.join(overheads)}"
        f"  {fake_s * 1e3:6.0f} ms  {len(table):4d} in {timing_s:4.1f} s"
        f" {fake.graph.total_cost_us() / 1e3:6.0f} ms"
        f"  {' / '.join(f'{peak / MIB:.3f}' for peak in peaks)}"
        f"  {'same' if fingerprint(real) == fingerprint(fake) else 'differ'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, one thread, fastest of {options.rounds} rounds; peaks in MiB"
    )
    print(
        "network      operators plain step  counting  recording   copying       fake   calls timed"
        "  modelled  peak measured / recorded / fake  fingerprints"
    )
    compare("resnet", resnet(), (4, 3, 112, 112), options.rounds)
    compare("transformer", transformer(), (8, 64, 192), options.rounds)
    compare("mlp", mlp(), (32, 64), options.rounds)


if __name__ == "__main__":
    main()
