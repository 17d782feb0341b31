"""The collectives in TensorFlow: eagerly, in functions and in sessions, with their gradients."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import library

TYPES = ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def both_ways(function):
    return [function, tf.function(function)]


def ranks():
    return range(hvd.size())


@pytest.mark.parametrize("dtype", TYPES)
def test_reductions_of_every_type(dtype):
    def reduce(value, op):
        return hvd.allreduce(tf.cast(value, dtype), op=op, name=f"reduce_{dtype}_{op}")

    # The product of three stays below 128, the largest that all types have.
    own = tf.reshape(tf.range(12) % 3 + hvd.rank() + 1, [3, 4])
    every = np.stack([np.arange(12).reshape(3, 4) % 3 + rank + 1 for rank in ranks()])
    expected = {
        hvd.Sum: every.sum(0),
        hvd.Min: every.min(0),
        hvd.Max: every.max(0),
        hvd.Product: every.prod(0),
    }
    for op, wanted in expected.items():
        for way in both_ways(reduce):
            result = way(own, op)
            assert result.dtype == dtype and result.shape == [3, 4]
            assert np.array_equal(tf.cast(result, tf.int64), wanted)


def test_averages_factors_and_the_old_argument():
    own = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
    mean = sum(rank + 1 for rank in ranks()) / hvd.size()
    assert np.allclose(hvd.allreduce(own), [mean, 2 * mean])
    scaled = hvd.allreduce(own, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    assert np.allclose(scaled, np.array([1, 2]) * mean * hvd.size() / 2)
    with pytest.warns(DeprecationWarning, match="average"):
        old = hvd.allreduce(own, average=False)
    assert np.allclose(old, hvd.allreduce(own, op=hvd.Sum))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(own, average=True, op=hvd.Sum)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        small = hvd.allreduce(own, compression=compression)
        assert small.dtype == tf.float32 and np.allclose(small, [mean, 2 * mean], rtol=1e-2)


def test_odd_shapes():
    for shape in ([], [0], [3, 0, 2], [1, 1, 1]):
        result = hvd.allreduce(tf.ones(shape), op=hvd.Sum)
        assert result.shape == shape and np.all(result.numpy() == hvd.size())
    gathered = hvd.allgather(tf.ones([0 if hvd.rank() == 0 else 2, 3]))
    assert gathered.shape == [2 * (hvd.size() - 1), 3]


def test_many_in_flight_in_one_function_whatever_their_order():
    @tf.function
    def step(value):
        # Each rank has its own order; with two threads only asynchronous kernels can get through.
        order = list(range(64))
        order = order[hvd.rank() :] + order[: hvd.rank()]
        reduced = {
            number: hvd.allreduce(value + float(number), op=hvd.Sum, name=f"flight_{number}")
            for number in order
        }
        return [reduced[number] for number in range(64)]

    for turn in range(3):
        results = step(tf.fill([100], float(turn)))
        for number, result in enumerate(results):
            assert np.all(result.numpy() == (turn + number) * hvd.size())


def test_groups_keep_their_order_and_may_mix_types_and_sparse_tensors():
    def reduce(value):
        slices = tf.IndexedSlices(value[:1], tf.constant([hvd.rank()]), tf.constant([8, 2]))
        mixed = [value, slices, tf.cast(value, tf.int32), value + 1]
        return hvd.grouped_allreduce(mixed, op=hvd.Sum, name="mixed")

    own = tf.ones([2, 2])
    for way in both_ways(reduce):
        first, sparse, integers, second = way(own)
        assert np.all(first.numpy() == hvd.size()) and np.all(second.numpy() == 2 * hvd.size())
        assert integers.dtype == tf.int32 and np.all(integers.numpy() == hvd.size())
        assert sparse.indices.numpy().tolist() == list(ranks())
        assert sparse.values.shape == [hvd.size(), 2]
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_allgather([]) == []


def test_sparse_tensors_and_what_they_cannot():
    slices = tf.IndexedSlices(tf.fill([1, 2], 4.0), tf.constant([hvd.rank()]), tf.constant([8, 2]))
    averaged = hvd.allreduce(slices, op=hvd.Average)
    assert np.allclose(averaged.values, 4.0 / hvd.size())
    # Whole numbers are divided, too, and not cut off before the slices are added up.
    whole = tf.IndexedSlices(tf.constant([[1], [3]]), tf.constant([0, 1]), tf.constant([2, 1]))
    for averaged in (hvd.allreduce(whole), hvd.grouped_allreduce([whole])[0]):
        assert np.allclose(tf.convert_to_tensor(averaged), [[1.0], [3.0]])
    # An average of dense ones is cut off towards zero.
    odd = tf.constant([-3, 3]) * (1 if hvd.rank() == 0 else 0)
    assert hvd.allreduce(odd).numpy().tolist() == [int(-3 / hvd.size()), int(3 / hvd.size())]
    with pytest.raises(NotImplementedError, match="Only Sum and Average"):
        hvd.allreduce(slices, op=hvd.Min)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(slices, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="Pre/postscale_factor"):
        hvd.allreduce(slices, op=hvd.Sum, prescale_factor=2.0)


def test_gathering_rows_that_differ():
    def gather(value):
        one = hvd.allgather(value, name="rows")
        return [one, *hvd.grouped_allgather([value, value * 2], name="grouped_rows")]

    own = tf.fill([hvd.rank() + 1, 2], float(hvd.rank()))
    expected = np.concatenate([np.full([rank + 1, 2], float(rank)) for rank in ranks()])
    for way in both_ways(gather):
        one, first, second = way(own)
        assert np.array_equal(one, expected) and np.array_equal(first, expected)
        assert np.array_equal(second, 2 * expected)
    shape = tf.function(gather).get_concrete_function(tf.TensorSpec([None, 3])).output_shapes[0]
    assert shape.as_list() == [None, 3]


def test_graphs_that_horovod_has_saved_load_and_know_the_names_of_results():
    variable = tf.Variable([1.0])
    wanted = {"root_rank": 0, "variable_names": ["v"]}
    with pytest.raises(tf.errors.FailedPreconditionError, match="broadcast_variables"):
        library.ops.horovod_broadcast_inplace_resource([variable.handle], **wanted)
    with tf.Graph().as_default() as graph:
        reference = tf.compat.v1.Variable([1.0], use_resource=False)
        library.ops.horovod_broadcast_inplace([reference._ref()], **wanted)
        tensors = [tf.ones([2, 3])]
        library.ops.horovod_grouped_allgather(tensors)
        library.ops.horovod_grouped_reducescatter(tensors, reduce_op=1)
    saved = graph.as_graph_def()
    for node in saved.node:
        # As of a release of Horovod that did not know these.
        for attribute in {"tensor_name", "prescale_factor", "postscale_factor"} & set(node.attr):
            del node.attr[attribute]
    with tf.Graph().as_default() as loaded:
        tf.import_graph_def(saved, name="")
    results = {
        node.type: [each.name for each in node.op_def.output_arg]
        for node in loaded.get_operations()
    }
    assert results["HorovodBroadcastInplace"] == ["output_refs"]
    assert (
        results["HorovodGroupedAllgather"] == results["HorovodGroupedReducescatter"] == ["outputs"]
    )


def test_broadcasting():
    for root in ranks():

        def send(value, root=root):
            return hvd.broadcast(value, root, name=f"from_{root}")

        for way in both_ways(send):
            assert np.all(way(tf.fill([5], hvd.rank())).numpy() == root)
    for root in (hvd.size(), -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"invalid root rank {root}"):
            hvd.broadcast(tf.ones([2]), root)


def test_exchanging_rows():
    size = hvd.size()
    splits = tf.constant([rank + 1 for rank in ranks()], tf.int32)
    own = tf.fill([int(tf.reduce_sum(splits)) + 1, 2], hvd.rank())

    def exchange(value):
        return hvd.alltoall(value, splits, name="exchange")

    for way in both_ways(exchange):
        output, received = way(own)
        assert received.numpy().tolist() == [hvd.rank() + 1] * size
        assert np.array_equal(output[:, 0], np.repeat(range(size), hvd.rank() + 1))
    even = hvd.alltoall(tf.repeat(tf.range(size), 2))
    assert np.all(even.numpy() == hvd.rank()) and even.shape == [2 * size]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not an even multiple"):
        hvd.alltoall(tf.ones([size + 1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="greater than the first dimension"):
        hvd.alltoall(tf.ones([1]), splits=[2] * size)


def test_scattering_reductions():
    rows = 2 * hvd.size() + 1
    own = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2])
    share = [rows // hvd.size() + (rank < rows % hvd.size()) for rank in ranks()]
    start = sum(share[: hvd.rank()])
    expected = own.numpy()[start : start + share[hvd.rank()]]
    assert np.array_equal(hvd.reducescatter(own), expected)
    for result in hvd.grouped_reducescatter([own, own], op=hvd.Sum):
        assert np.array_equal(result, expected * hvd.size())
    with pytest.raises(NotImplementedError, match="AVERAGE and SUM"):
        hvd.reducescatter(own, op=hvd.Max)
    with pytest.raises(tf.errors.FailedPreconditionError, match="scalar"):
        hvd.reducescatter(tf.constant(1.0))


def gradient_of(function, value):
    variable = tf.Variable(value)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(function(variable) * float(hvd.rank() + 1))
    return tape.gradient(loss, variable).numpy()


def test_gradients_flow_through_all_of_them():
    size, rank = hvd.size(), hvd.rank()
    total = sum(each + 1.0 for each in ranks())
    value = tf.ones([size, 2])

    def check(function, expected):
        for way in both_ways(lambda: gradient_of_traced(function)):
            assert np.allclose(way(), expected), function

    variable = tf.Variable(value)

    def gradient_of_traced(function):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(variable) * float(rank + 1))
        return tape.gradient(loss, variable)

    check(lambda v: hvd.allreduce(v, op=hvd.Sum), total)
    check(lambda v: hvd.allreduce(v), total / size)
    check(lambda v: hvd.grouped_allreduce([v, v], op=hvd.Sum)[0], total)
    check(lambda v: hvd.allgather(v), total / size)
    check(lambda v: hvd.grouped_allgather([v, v])[1], total / size)
    check(lambda v: hvd.broadcast(v, 0), total / size if rank == 0 else 0.0)
    by_rows = np.repeat([[each + 1.0] for each in ranks()], 2, axis=1)
    check(lambda v: hvd.alltoall(v), by_rows)
    check(lambda v: hvd.reducescatter(v), by_rows)
    check(lambda v: hvd.reducescatter(v, op=hvd.Sum), by_rows * size)
    check(lambda v: hvd.grouped_reducescatter([v, v])[0], by_rows)


def test_a_mismatch_is_a_failed_precondition_and_a_wrong_name_twice_is_invalid():
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched ALLREDUCE"):
        hvd.allreduce(tf.ones([hvd.rank() + 1]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched data types"):
        hvd.allreduce(tf.ones([2], tf.float32 if hvd.rank() == 0 else tf.float64))
    assert np.all(hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy() == hvd.size())


def test_wrong_arguments_say_what_to_give():
    with pytest.raises(ValueError, match="compression is 'fp16'; give Compression"):
        hvd.allreduce(tf.ones(2), compression="fp16")
    for wrong in (None, 0, [0, 1]):
        with pytest.raises(TypeError, match="give what"):
            hvd.allgather(tf.ones(2), process_set=wrong)
    with pytest.raises(tf.errors.InvalidArgumentError, match="1D splits"):
        hvd.alltoall(tf.ones(hvd.size()), splits=[[1] * hvd.size()])
    for wrong in ([1.0] * hvd.size(), tf.ones(hvd.size())):
        with pytest.raises(tf.errors.InvalidArgumentError, match="32-bit integer elements"):
            hvd.alltoall(tf.ones(hvd.size()), splits=wrong)
    for kind in (NotImplementedError, RuntimeError, ValueError):
        with pytest.raises(kind, match="only supports AVERAGE and SUM"):
            hvd.reducescatter(tf.ones(hvd.size()), op=hvd.Adasum)
    unknown = hvd.ProcessSet([0])
    unknown.process_set_id = 77
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="Process set provided does not exist"):
            call(tf.ones(hvd.size()), process_set=unknown)
    sparse = tf.SparseTensor([[0]], [1.0], [2])
    for wrong, advice in ((object(), "convert it first"), (sparse, "make it dense first")):
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(TypeError, match=f"horovod.tensorflow takes tensors.*{advice}"):
                call(wrong)
    with pytest.raises(RuntimeError, match=r"use hvd\.broadcast_object"):
        hvd.broadcast_object_fn()
    alone = tf.Variable([float(hvd.rank())])
    hvd.broadcast_variables(alone, 1)
    assert alone.numpy() == [1.0]


def test_process_sets():
    chosen = list(range(0, hvd.size(), 2))
    members = hvd.add_process_set(chosen)
    assert hvd.process_set_included_op(members.process_set_id).numpy() == members.included()
    assert hvd.size_op(members.process_set_id).numpy() == len(chosen)
    if members.included():
        result = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, process_set=members)
        assert result.numpy() == [len(chosen)]
        gathered = hvd.allgather(tf.constant([hvd.rank()]), process_set=members)
        assert gathered.numpy().tolist() == chosen
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, process_set=members)
    hvd.barrier()
    assert hvd.remove_process_set(members)
    assert hvd.process_set_included_op(77).numpy() == -2


def test_values_that_nodes_look_up_when_they_run():
    @tf.function
    def look():
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()

    found = [int(value) for value in look()]
    assert found == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


def test_objects_and_variables():
    last = hvd.size() - 1
    assert hvd.broadcast_object({"rank": hvd.rank()}, last) == {"rank": last}
    assert hvd.allgather_object((hvd.rank(), "x" * hvd.rank())) == [
        (rank, "x" * rank) for rank in ranks()
    ]
    variables = [tf.Variable(tf.fill([3], float(hvd.rank()))), tf.Variable(hvd.rank())]
    hvd.broadcast_variables(variables, last)
    assert [variable.numpy().tolist() for variable in variables] == [[float(last)] * 3, last]
    variables[0].assign(tf.fill([3], float(hvd.rank())))
    assert hvd.broadcast_(variables[:1], 0)[0].numpy().tolist() == [0.0] * 3
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def test_shapes_that_only_the_run_knows():
    def everything(value):
        both = hvd.allreduce(value), hvd.broadcast(value, 0)
        return [*both, hvd.allgather(value), hvd.alltoall(value), hvd.reducescatter(value)]

    traced = tf.function(everything, input_signature=[tf.TensorSpec(None)])
    assert all(shape.rank is None for shape in traced.get_concrete_function().output_shapes)
    for shape in ([hvd.size()], [2 * hvd.size(), 3]):
        rows = [shape[0], shape[0], shape[0] * hvd.size(), shape[0], shape[0] // hvd.size()]
        for result, expected in zip(traced(tf.ones(shape)), rows):
            assert result.shape == [expected, *shape[1:]] and np.all(result.numpy() == 1.0)
    gather = tf.function(hvd.allgather, input_signature=[tf.TensorSpec(None)])
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank-zero"):
        gather(tf.constant(1.0))


def test_unsigned_words_travel_but_are_not_computed_with():
    for dtype in (tf.uint32, tf.uint64):
        largest = tf.fill([2], tf.constant(dtype.max - hvd.rank(), dtype))
        sent = hvd.broadcast(largest, 1)
        assert sent.dtype == dtype and np.all(sent.numpy() == dtype.max - 1)
        assert hvd.allgather(largest)[0].numpy() == dtype.max
        seeds = tf.Variable(largest)
        hvd.broadcast_variables([seeds], hvd.size() - 1)
        assert np.all(seeds.numpy() == dtype.max - (hvd.size() - 1))
        with pytest.raises((tf.errors.InvalidArgumentError, TypeError)):
            hvd.allreduce(largest)


def test_names_count_eagerly_too():
    # Threads of a rank take turns as they like; only names bring the right tensors together.
    names = [f"eager_{number}" for number in range(6)]
    results = {}

    def reduce(name, number):
        results[name] = hvd.allreduce(tf.fill([3], float(number)), op=hvd.Sum, name=name)

    order = list(enumerate(names))
    order = order[hvd.rank() :] + order[: hvd.rank()]
    threads = [threading.Thread(target=reduce, args=[name, number]) for number, name in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, name in enumerate(names):
        assert np.all(results[name].numpy() == number * hvd.size())


def test_joining():
    for turn in range(hvd.rank() + 1):
        alive = sum(turn <= rank for rank in ranks())
        assert hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [alive] * 2
    assert hvd.join().numpy() == hvd.size() - 1


def test_sessions_of_tensorflow_1():
    with tf.Graph().as_default():
        own = tf.compat.v1.placeholder(tf.float32, [None])
        shared = tf.compat.v1.get_variable("shared", initializer=float(hvd.rank()))
        old = tf.compat.v1.Variable(float(hvd.rank()), use_resource=False, name="reference")
        reduced = hvd.allreduce(own, average=False, device_dense="/cpu:0")
        sent = hvd.broadcast_global_variables(hvd.size() - 1)
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(sent)
            assert session.run([shared, old]) == [hvd.size() - 1.0] * 2
            assert session.run(reduced, {own: [1.0, 2.0]}).tolist() == [hvd.size(), 2 * hvd.size()]
            assert hvd.broadcast_object(hvd.rank(), 0, session) == 0
            send = hvd.broadcast_object_fn(0, session)
            assert [send([hvd.rank(), "a"]), send("b" * hvd.rank())] == [[0, "a"], ""]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(shared) == 0.0
