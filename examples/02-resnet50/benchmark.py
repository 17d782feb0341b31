"""Measures how many images per second a residual network trains on, with synthetic images.

`python benchmark.py` or `horovodrun -np 2 python benchmark.py`. Its flags and output match the
synthetic benchmark that comes with Horovod, so that scripts that parse one can parse the other.
"""

import argparse
import statistics
import timeit

import torch
from resnet import DEPTHS, ResNet
from torch import nn

import horovod.torch as hvd


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(42)

    model = ResNet(options.model)
    # With Adasum the steps of all ranks are combined without making them smaller, so that the
    # learning rate need not grow with the number of ranks.
    lr = 0.01 if options.use_adasum else 0.01 * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if options.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    labels = torch.randint(1000, (options.batch_size,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    measure(step, options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", choices=DEPTHS)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=224, help="dots per side of an image")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument(
        "--fp16-allreduce", action="store_true", help="send gradients in half precision"
    )
    parser.add_argument("--use-adasum", action="store_true", help="combine steps with Adasum")
    parser.add_argument(
        "--no-cuda", action="store_true", help="accepted; this release trains on CPUs in any case"
    )
    return parser.parse_args()


def measure(step, options):
    say(f"Model: {options.model}")
    say(f"Batch size: {options.batch_size}")
    say(f"Number of CPUs: {hvd.size()}")

    say("Running warmup...")
    timeit.timeit(step, number=options.num_warmup_batches)

    say("Running benchmark...")
    rates = []
    for number in range(options.num_iters):
        seconds = timeit.timeit(step, number=options.num_batches_per_iter)
        rates.append(options.batch_size * options.num_batches_per_iter / seconds)
        say(f"Iter #{number}: {rates[-1]:.1f} img/sec per CPU")

    # 95 % of the iterations are within this distance of the mean if the noise is normal.
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    say(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    ranks = hvd.size()
    say(f"Total img/sec on {ranks} CPU(s): {ranks * mean:.1f} +-{ranks * spread:.1f}")


def say(line):
    if hvd.rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
