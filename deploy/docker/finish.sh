#!/bin/sh
# Finishes an image: links our examples to the paths at which Horovod's images have theirs, so that
# command lines from guides find a program for the same purpose, and checks that Ronde works. Runs in
# the Dockerfile.
set -eu
cd /horovod/examples

link() { # our program, then the paths that people type
  program=$1
  shift
  test -f "$program"
  for path; do
    mkdir -p "$(dirname "$path")"
    ln -s "/horovod/examples/$program" "$path"
  done
}

link 01-digits/train.py pytorch/pytorch_mnist.py
link 02-resnet50/benchmark.py pytorch/pytorch_synthetic_benchmark.py
link 08-lightning/train.py pytorch/pytorch_lightning_mnist.py
link 09-elastic/train.py elastic/pytorch/pytorch_mnist_elastic.py
link 09-elastic/imagenet_resnet50.py elastic/pytorch/pytorch_imagenet_resnet50_elastic.py
link 10-tensorflow-tape/train.py tensorflow2/tensorflow2_mnist.py
link 11-keras-fit/train.py tensorflow2/tensorflow2_keras_mnist.py \
  keras/keras_mnist.py keras/keras_mnist_advanced.py keras_mnist_advanced.py
link 12-tensorflow-1/train.py tensorflow/tensorflow_mnist.py

# Ranks run in the directory where the job was started. People start it in a project mounted here, and
# not everyone mounts it for the workers, too: `python -c` and modules run without it.
mkdir -p /workspace

horovodrun --check-build
python -c 'import horovod.raw as hvd; hvd.init(); assert hvd.size() == 1'
