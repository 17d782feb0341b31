"""The loaders of `horovod.data`: epochs, prefetching, errors, and closing."""

import subprocess
import sys
import threading

import pytest

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader


class Numbers(BaseDataLoader):
    def __init__(self, count, offset=0):
        self.count = count
        self.offset = offset
        self.loaded = 0

    def __len__(self):
        return self.count

    def _iterate(self):
        for number in range(self.count):
            self.loaded += 1
            yield self.offset + number

    def _process_batch(self, batch):
        return (batch, threading.current_thread() is threading.main_thread())


class Ahead(AsyncDataLoaderMixin, Numbers):
    pass


@pytest.fixture
def ahead():
    made = []

    def make(kind, *args, **kwargs):
        made.append(kind(*args, **kwargs))
        return made[-1]

    yield make
    for loader in made:
        loader.close_async_loader()


def numbers(loader):
    return [number for number, _ in loader]


def test_a_loader_processes_what_it_iterates_over():
    loader = Numbers(3, offset=5)
    assert len(loader) == 3
    assert list(loader) == [(5, True), (6, True), (7, True)]
    assert list(loader) == list(loader)


def test_a_loader_without_its_methods_raises_an_error():
    with pytest.raises(NotImplementedError, match="BaseDataLoader does not define the number"):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError, match="does not define `_iterate`"):
        next(iter(BaseDataLoader()))


@pytest.mark.parametrize("size", [0, 1, 3, 64])
def test_every_epoch_is_complete_and_processed_in_the_main_thread(ahead, size):
    loader = ahead(Ahead, size, False, 10, offset=1)
    assert len(loader) == 10
    for _ in range(3):
        assert list(loader) == [(number, True) for number in range(1, 11)]


def test_no_more_is_loaded_than_fits_the_queue(ahead):
    gate = threading.Semaphore(0)

    class Gated(Ahead):
        def _iterate(self):
            for number in super()._iterate():
                yield number
                # Reached once the queue has had space for the number.
                gate.release()

    loader = ahead(Gated, async_loader_queue_size=2, count=10)
    batches = iter(loader)
    assert next(batches)[0] == 0
    for _ in range(3):
        assert gate.acquire(timeout=10)
    assert not gate.acquire(timeout=0.05)
    assert loader.loaded == 4
    assert [number for number, _ in batches] == list(range(1, 10))


def test_an_interrupted_epoch_continues_at_the_next_iteration(ahead):
    loader = ahead(Ahead, count=5)
    for number, _ in loader:
        if number == 1:
            break
    assert numbers(loader) == [2, 3, 4]
    assert numbers(loader) == [0, 1, 2, 3, 4]


def test_none_is_a_batch_like_any_other(ahead):
    class Nothing(Ahead):
        def _iterate(self):
            return [None, 1]

    assert numbers(ahead(Nothing, count=2)) == [None, 1]


@pytest.mark.parametrize("size", [0, 4])
def test_an_error_arrives_after_the_batches_before_it(ahead, size):
    class Broken(Ahead):
        broken = True

        def _iterate(self):
            yield from super()._iterate()
            if self.broken:
                raise OSError("no more data")

    loader = ahead(Broken, size, False, 2)
    seen = []
    with pytest.raises(OSError, match="no more data"):
        seen.extend(number for number, _ in loader)
    assert seen == [0, 1]
    loader.broken = False
    assert numbers(loader) == [0, 1]


def test_closing_ends_the_thread_and_the_next_epoch_starts_over(ahead):
    before = threading.active_count()
    loader = ahead(Ahead, count=100)
    batches = iter(loader)
    next(batches)
    assert threading.active_count() == before + 1
    loader.close_async_loader()
    assert threading.active_count() == before
    assert list(batches) == []
    assert numbers(loader) == list(range(100))
    loader.close_async_loader()
    loader.close_async_loader()


def test_closing_ends_a_wait_for_a_batch(ahead):
    more = threading.Event()

    class Slow(Ahead):
        def _iterate(self):
            yield 0
            more.wait(20)

    loader = ahead(Slow, count=0)
    batches = iter(loader)
    next(batches)
    rest = []
    thread = threading.Thread(target=lambda: rest.append(list(batches)))
    thread.start()
    closing = threading.Thread(target=loader.close_async_loader)
    closing.start()
    thread.join(10)
    assert rest == [[]]
    more.set()
    closing.join(10)
    assert not closing.is_alive()


def test_queue_activity_can_be_logged(ahead, caplog):
    list(ahead(Ahead, 4, True, 2))
    assert "took a batch" in caplog.text


def test_the_interpreter_can_exit_while_batches_load_without_any_framework():
    code = (
        "import sys\n"
        "from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader\n"
        "class L(AsyncDataLoaderMixin, BaseDataLoader):\n"
        "    def _iterate(self):\n"
        "        return iter(range(1000))\n"
        "print(next(iter(L())), {'torch', 'numpy', 'horovod._native'} & set(sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "0 set()\n", "")
