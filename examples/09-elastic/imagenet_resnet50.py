"""Trains ResNet-50 on two folders of images while ranks join, leave and die.

The flags are those of the elastic ImageNet program that comes with Horovod, as far as they apply;
`make_images.py` in this folder creates small folders of images to try it with.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

import horovod.torch as hvd

MEAN, SPREAD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(options.seed)

    train_set, val_set = folders(options)
    model = models.resnet50(num_classes=max(2, len(train_set.classes)))
    optimizer = distributed(model, options)
    train_sampler = hvd.elastic.ElasticSampler(train_set)
    val_sampler = hvd.elastic.ElasticSampler(val_set, shuffle=False)
    loaders = (
        DataLoader(train_set, options.batch_size, sampler=train_sampler),
        DataLoader(val_set, options.val_batch_size, sampler=val_sampler),
    )
    state = hvd.elastic.TorchState(
        model=model,
        optimizer=optimizer,
        train_sampler=train_sampler,
        val_sampler=val_sampler,
        epoch=resumed(model, optimizer, options),
        batch=0,
    )
    run(state, *loaders, options)


@hvd.elastic.run
def run(state, train_loader, val_loader, options):
    """Called again, with the state of the last commit, whenever the ranks have changed."""
    while state.epoch < options.epochs:
        start, done = time.perf_counter(), state.train_sampler.processed_num
        loss = train(state, train_loader, options)
        images = state.train_sampler.processed_num - done
        rate = images / (time.perf_counter() - start)
        accuracy = validate(state, val_loader)
        if hvd.rank() == 0:
            print(
                f"epoch {state.epoch}: {hvd.size()} ranks, loss {loss:.3f}, accuracy "
                f"{accuracy:.3f}, {rate:.1f} images/s",
                flush=True,
            )
            save(state, options)
        state.epoch += 1
        state.batch = 0
        state.train_sampler.set_epoch(state.epoch)
        state.val_sampler.set_epoch(state.epoch)
        state.commit()


def train(state, loader, options):
    """Trains for the rest of an epoch; returns the mean loss of all ranks."""
    state.model.train()
    losses = Mean("train_loss")
    for images, labels in loader:
        adjust_learning_rate(state, len(loader), options)
        state.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(state.model(images), labels)
        loss.backward()
        state.optimizer.step()
        losses.add(loss.detach(), len(images))
        state.train_sampler.record_batch(state.batch, options.batch_size)
        state.batch += 1
        if state.batch % options.batches_per_commit == 0:
            state.commit()
        elif state.batch % options.batches_per_host_check == 0:
            state.check_host_updates()
    return losses.of_all_ranks()


@torch.no_grad()
def validate(state, loader):
    """The fraction of images that all ranks together classified correctly."""
    state.model.eval()
    correct = Mean("val_accuracy")
    for images, labels in loader:
        right = state.model(images).argmax(1) == labels
        correct.add(right.float().mean(), len(images))
    return correct.of_all_ranks()


class Mean:
    """The mean of something over batches and ranks."""

    def __init__(self, name):
        self.name = name
        self.sums = torch.zeros(2)

    def add(self, value, count):
        self.sums += torch.tensor([float(value) * count, count])

    def of_all_ranks(self):
        total, count = hvd.allreduce(self.sums, op=hvd.Sum, name=self.name).tolist()
        return total / count if count else 0.0


def adjust_learning_rate(state, batches, options):
    """Warms the rate up to that of all ranks in the first epochs, and lowers it in steps later."""
    epoch = state.epoch + state.batch / max(1, batches)
    if epoch < options.warmup_epochs:
        factor = (epoch * (hvd.size() - 1) / options.warmup_epochs + 1) / hvd.size()
    else:
        factor = 0.1 ** sum(epoch >= limit for limit in (30, 60, 80))
    for group in state.optimizer.param_groups:
        group["lr"] = options.base_lr * hvd.size() * factor


def distributed(model, options):
    optimizer = torch.optim.SGD(
        model.parameters(), options.base_lr, momentum=options.momentum, weight_decay=options.wd
    )
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        gradient_predivide_factor=options.gradient_predivide_factor,
    )


def folders(options):
    side = options.image_size
    normal = [transforms.ToTensor(), transforms.Normalize(MEAN, SPREAD)]
    crop = [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip()]
    middle = [transforms.Resize(side * 8 // 7), transforms.CenterCrop(side)]
    return (
        datasets.ImageFolder(options.train_dir, transforms.Compose([*crop, *normal])),
        datasets.ImageFolder(options.val_dir, transforms.Compose([*middle, *normal])),
    )


def resumed(model, optimizer, options):
    """The epoch to start with; what is read here only matters on the rank that becomes rank 0."""
    for epoch in range(options.epochs if options.checkpoint_format else 0, 0, -1):
        file = Path(options.checkpoint_format.format(epoch=epoch))
        if file.exists():
            checkpoint = torch.load(file)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            return epoch
    return 0


def save(state, options):
    """Writes a checkpoint file, which unlike a commit outlives the job."""
    if options.checkpoint_format:
        checkpoint = {
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
        }
        torch.save(checkpoint, options.checkpoint_format.format(epoch=state.epoch + 1))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train-dir", default="imagenet/train", help="a folder for each class")
    parser.add_argument("--val-dir", default="imagenet/validation")
    parser.add_argument(
        "--checkpoint-format", default="checkpoint-{epoch}.pth.tar", help="empty for no files"
    )
    parser.add_argument("--image-size", type=int, default=224, help="dots per side of an image")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--val-batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--base-lr", type=float, default=0.0125, help="learning rate of one rank")
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=0.00005, help="weight decay")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--batches-per-commit", type=int, default=100)
    parser.add_argument("--batches-per-host-check", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true", help="accepted: this trains on CPUs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
