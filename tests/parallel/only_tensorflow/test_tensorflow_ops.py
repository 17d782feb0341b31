"""Collectives in TensorFlow only: graphs, sparse tensors, variables, sessions."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import library


def both_ways(function):
    return [function, tf.function(function)]


def ranks():
    return range(hvd.size())


def test_many_in_flight_in_one_function_in_any_order():
    @tf.function
    def step(value):
        # Each rank has its own order; with two threads, only asynchronous kernels do not deadlock.
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


def test_sparse_tensors_and_what_they_do_not_support():
    slices = tf.IndexedSlices(tf.fill([1, 2], 4.0), tf.constant([hvd.rank()]), tf.constant([8, 2]))
    averaged = hvd.allreduce(slices, op=hvd.Average)
    assert np.allclose(averaged.values, 4.0 / hvd.size())
    # Integers are divided, too, and not truncated before the slices are added up.
    whole = tf.IndexedSlices(tf.constant([[1], [3]]), tf.constant([0, 1]), tf.constant([2, 1]))
    for averaged in (hvd.allreduce(whole), hvd.grouped_allreduce([whole])[0]):
        assert np.allclose(tf.convert_to_tensor(averaged), [[1.0], [3.0]])
    # The average of a dense integer tensor is truncated toward zero.
    odd = tf.constant([-3, 3]) * (1 if hvd.rank() == 0 else 0)
    assert hvd.allreduce(odd).numpy().tolist() == [int(-3 / hvd.size()), int(3 / hvd.size())]
    with pytest.raises(NotImplementedError, match="Only Sum and Average"):
        hvd.allreduce(slices, op=hvd.Min)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(slices, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="Pre/postscale_factor"):
        hvd.allreduce(slices, op=hvd.Sum, prescale_factor=2.0)


def test_static_shapes_of_results_are_as_complete_as_possible():
    gather = tf.function(lambda value: [hvd.allgather(value), *hvd.grouped_allgather([value])])
    for shape in gather.get_concrete_function(tf.TensorSpec([None, 3])).output_shapes:
        assert shape.as_list() == [None, 3]


def test_graphs_saved_with_horovod_load_with_the_same_output_names():
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
        # As written by a release of Horovod without these attributes.
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


def test_errors_about_wrong_arguments_give_advice():
    sparse = tf.SparseTensor([[0]], [1.0], [2])
    for wrong, advice in ((object(), "convert it first"), (sparse, "make it dense first")):
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(TypeError, match=f"horovod.tensorflow takes tensors.*{advice}"):
                call(wrong)
    with pytest.raises(RuntimeError, match=r"use hvd\.broadcast_object"):
        hvd.broadcast_object_fn()


def test_ops_look_up_process_sets():
    chosen = list(range(0, hvd.size(), 2))
    members = hvd.add_process_set(chosen)
    assert hvd.process_set_included_op(members.process_set_id).numpy() == members.included()
    assert hvd.size_op(members.process_set_id).numpy() == len(chosen)
    hvd.barrier()
    assert hvd.remove_process_set(members)
    assert hvd.process_set_included_op(77).numpy() == -2


def test_ops_look_up_ranks_and_sizes_when_they_run():
    @tf.function
    def look():
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()

    found = [int(value) for value in look()]
    assert found == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


def test_variables():
    last = hvd.size() - 1
    variables = [tf.Variable(tf.fill([3], float(hvd.rank()))), tf.Variable(hvd.rank())]
    hvd.broadcast_variables(variables, last)
    assert [variable.numpy().tolist() for variable in variables] == [[float(last)] * 3, last]
    hvd.broadcast_variables(variables[1].assign(hvd.rank()), 1)
    assert variables[1].numpy() == 1
    variables[0].assign(tf.fill([3], float(hvd.rank())))
    assert hvd.broadcast_(variables[:1], 0)[0].numpy().tolist() == [0.0] * 3
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def test_shapes_that_are_known_only_at_run_time():
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


def test_unsigned_integers_can_be_sent_but_not_reduced():
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
