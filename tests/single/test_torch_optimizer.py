"""The distributed optimizer in a world of one: its class, its checks and its errors."""

import copy
import pickle
import subprocess
import sys
import warnings

import pytest
import torch

import horovod.torch as hvd


@pytest.fixture(autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))


def sgd(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, **options)


def test_the_class_has_the_wrapped_ones_name_and_derives_from_it(model):
    wrapped = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(wrapped)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == "horovod.torch.optimizer"
    assert "horovod" in str(type(optimizer))
    assert optimizer.param_groups[0] is wrapped.param_groups[0]
    with pytest.raises(ValueError, match="wrap it only once"):
        hvd.DistributedOptimizer(optimizer)


def test_other_libraries_find_the_attributes_of_horovod(model):
    process_set = hvd.global_process_set
    optimizer = sgd(
        model,
        compression=hvd.Compression.fp16,
        backward_passes_per_step=2,
        gradient_predivide_factor=4.0,
        sparse_as_dense=True,
        process_set=process_set,
    )
    assert optimizer.op == hvd.Average and optimizer.process_set is process_set
    assert optimizer.gradient_predivide_factor == 4.0 and optimizer.sparse_as_dense
    assert optimizer.backward_passes_per_step == 2
    assert optimizer._compression is hvd.Compression.fp16
    # There is nothing to reduce in a world of one.
    assert optimizer._requires_update == set() and not optimizer._handles
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    handle, context = optimizer._allreduce_grad_async(first)
    assert torch.equal(hvd.synchronize(handle).to(context), first.grad)


def test_anything_but_an_optimizer_is_refused(model):
    for wrong in ("sgd", None, torch.optim.SGD, model):
        with pytest.raises(ValueError, match="is not an optimizer of torch"):
            hvd.DistributedOptimizer(wrong)


def test_an_optimizer_with_an_unusual_constructor_can_be_wrapped(model):
    class Unusual(torch.optim.SGD):
        def __init__(self, model, flavor):
            super().__init__(model.parameters(), lr=0.1)
            self.flavor = flavor

    optimizer = hvd.DistributedOptimizer(Unusual(model, "mint"))
    assert optimizer.flavor == "mint"
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_parameters_have_names(model):
    optimizer = sgd(model, named_parameters=model.named_parameters())
    assert optimizer._parameter_names[model[0].weight] == "0.weight"
    optimizer = sgd(model)
    assert optimizer._parameter_names[model[1].bias] == "allreduce.noname.0.3"


def test_invalid_names_are_refused(model):
    with pytest.raises(ValueError) as error:
        sgd(model, named_parameters=model.parameters())
    assert str(error.value) == (
        "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
        "model.named_parameters()."
    )
    with pytest.raises(ValueError) as error:
        sgd(model, named_parameters=[("a", p) for p in model.parameters()])
    assert str(error.value) == (
        "Parameter names in named_parameters must be unique. Found duplicates: a"
    )
    with pytest.raises(ValueError) as error:
        sgd(model, named_parameters=list(model.named_parameters())[1:])
    assert str(error.value).startswith(
        "named_parameters was specified, but one or more model parameters were not named. "
    )


def test_invalid_options_are_refused(model):
    with pytest.raises(ValueError) as error:
        sgd(model, backward_passes_per_step=0)
    assert str(error.value) == "backward_passes_per_step must be > 0"
    with pytest.raises(ValueError) as error:
        sgd(model).set_backward_passes_per_step(0)
    assert str(error.value) == "backward_passes_per_step must be > 0"
    with pytest.raises(ValueError) as error:
        sgd(model, gradient_predivide_factor=2.0, op=hvd.Sum)
    assert str(error.value) == "gradient_predivide_factor not supported with op != Average"
    with pytest.raises(ValueError, match="has not been registered"):
        sgd(model, process_set=hvd.ProcessSet([0]))


def test_invalid_groups_are_refused(model):
    weight = model[0].weight
    kinds = "groups should be a non-negative integer or a list of list of torch.Tensor."
    for groups, text in (
        (-1, kinds),
        ("ab", kinds),
        ([weight], kinds),
        ([["a"]], "groups must consist of torch.Tensor."),
        ([[weight], [weight]], "A parameter can only appear once in groups."),
    ):
        with pytest.raises(ValueError) as error:
            sgd(model, groups=groups)
        assert str(error.value) == text


def test_num_groups_is_deprecated(model):
    with pytest.warns(DeprecationWarning, match="replaced by `groups`"):
        sgd(model, num_groups=2)


def test_step_hooks_run_once(model):
    calls = []
    wrapped = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer = hvd.DistributedOptimizer(wrapped)
    optimizer.load_state_dict(optimizer.state_dict())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert calls == ["after"]


def test_a_scheduler_works_whether_made_before_or_after_wrapping(model):
    wrapped = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.StepLR(wrapped, step_size=1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(wrapped)
    after = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    hvd.broadcast_optimizer_state(optimizer, 0)
    model(torch.ones(1, 3)).sum().backward()
    wrapped.step()
    optimizer.step()
    before.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_step_after_synchronize_warns_unless_skipped(model):
    optimizer = sgd(model)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"optimizer\.step\(\) called without optimizer\.skip_sy"):
        optimizer.step()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


def test_wrapping_keeps_the_state_of_the_optimizer(model):
    wrapped = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    wrapped.step()
    optimizer = hvd.DistributedOptimizer(wrapped)
    assert len(optimizer.state_dict()["state"]) == 4
    assert optimizer.step(lambda: model(torch.ones(1, 3)).sum()) is not None


def test_lbfgs_state_cannot_be_broadcast(model):
    with pytest.raises(ValueError) as error:
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
    assert str(error.value) == "cannot broadcast torch.optim.LBFGS state"


def test_parameters_are_given_as_a_dictionary_or_a_list(model):
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_parameters(list(model.named_parameters()), 0)
    hvd.broadcast_parameters(list(model.parameters()), 0)
    with pytest.raises(ValueError, match="invalid params of type: <class 'generator'>"):
        hvd.broadcast_parameters(model.parameters(), 0)
    with pytest.raises(ValueError, match="send it with broadcast_object"):
        hvd.broadcast_parameters({"extra": 3}, 0)


def test_broadcast_and_gathered_objects_equal_the_input():
    assert hvd.broadcast_object({"a": 1}) == {"a": 1}
    assert hvd.allgather_object([1, "b"]) == [[1, "b"]]


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_wrapped_optimizer_can_be_copied_and_pickled(model, kind):
    optimizer = sgd(model, named_parameters=model.named_parameters(), backward_passes_per_step=2)
    optimizer.register_step_post_hook(lambda *_: None)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    other = COPIES[kind](optimizer)
    assert type(other).__mro__[1:] == type(optimizer).__mro__[1:]
    assert str(type(other)) == str(type(optimizer))
    assert other.backward_passes_per_step == 2
    assert other.param_groups[0]["lr"] == 0.05
    assert list(other._parameter_names.values()) == list(optimizer._parameter_names.values())
    parameters = other.param_groups[0]["params"]
    assert set(other._parameter_names) == set(parameters)
    assert (parameters[0] is model[0].weight) == (kind == "copy")
    assert str(other.state_dict()) == str(optimizer.state_dict())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    before = parameters[0].detach().clone()
    other.step()
    assert not torch.equal(parameters[0], before)


def test_step_hooks_run_after_unpickling_in_a_new_process():
    code = (
        "import pickle, sys, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "optimizer = pickle.load(sys.stdin.buffer)\n"
        "optimizer.register_step_post_hook(lambda *_: print('after'))\n"
        "optimizer.param_groups[0]['params'][0].grad = torch.ones(2)\n"
        "optimizer.step()\n"
        "print(optimizer.param_groups[0]['params'][0].tolist())\n"
    )
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.5))
    result = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(optimizer), capture_output=True
    )
    assert result.stdout.decode() == "after\n[0.5, 0.5]\n", result.stderr.decode()


def test_a_copy_needs_a_world(model):
    data = pickle.dumps(sgd(model))
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."):
        pickle.loads(data)


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_works_like_with_the_plain_optimizer(model, fused):
    scaler_of = getattr(torch.amp, "GradScaler", None)
    if scaler_of is None:
        pytest.skip("this torch scales on GPUs only")
    try:
        wrapped = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    except (RuntimeError, TypeError):
        pytest.skip("this torch has no fused optimizer on CPUs")
    before = model[0].weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(wrapped)
    scaler = scaler_of("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    gradient = model[0].weight.grad.clone() / 8.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.step(optimizer)
    assert torch.allclose(model[0].weight, before - 0.1 * gradient)


def test_lbfgs_steps_like_the_plain_optimizer(model):
    alone = copy.deepcopy(model)
    for each, wrap in ((alone, lambda optimizer: optimizer), (model, hvd.DistributedOptimizer)):
        optimizer = wrap(torch.optim.LBFGS(each.parameters(), lr=0.1))

        def closure(each=each, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (each(torch.ones(1, 3)) - 2).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert torch.equal(model[0].weight, alone[0].weight)
