"""What the Spark estimators do around training: losses, optimizers, shapes, transformations."""

import copy

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from horovod.spark.common.job import Job, shaped
from horovod.spark.common.prepared import describe
from horovod.spark.common.runs import first_epoch
from horovod.spark.common.store import Store
from horovod.spark.common.transformation import Transformation
from horovod.spark.torch import TorchEstimator
from horovod.spark.torch.attach import attach, scale_rates
from horovod.spark.torch.losses import Losses, Metrics, aligned

# Torch's optimizers import its compiler on first use, and the machine may be busy.
pytestmark = pytest.mark.timeout(240)


def test_labels_take_the_shape_of_outputs_that_differ_by_ones():
    outputs, labels = aligned(torch.zeros(3, 1), [torch.ones(3)])
    assert outputs[0].shape == labels[0].shape == (3, 1)


def test_class_numbers_keep_their_shape():
    _, labels = aligned(torch.zeros(3, 4), [torch.ones(3, dtype=torch.int64)])
    assert labels[0].shape == (3,)


def test_a_model_needs_an_output_for_each_label():
    with pytest.raises(ValueError, match="returns 1 outputs for 2 label columns"):
        aligned(torch.zeros(3), [torch.zeros(3), torch.zeros(3)])


def test_losses_are_weighted_by_label_and_row():
    outputs = [torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [2.0]])]
    labels = [torch.zeros(2, 1), torch.zeros(2, 1)]
    mse = torch.nn.MSELoss()
    assert Losses(mse, ["a", "b"], None)(outputs, labels, None) == pytest.approx(4.5)
    assert Losses([mse, mse], ["a", "b"], [1, 2])(outputs, labels, None) == pytest.approx(13)
    rows = torch.tensor([3.0, 1.0])
    for loss in (mse, torch.nn.functional.mse_loss):
        assert Losses(loss, ["a"], None)(outputs[:1], labels[:1], rows) == pytest.approx(3)


def test_a_loss_that_cannot_weigh_rows_says_so():
    losses = Losses(lambda output, label: (output - label).mean(), ["a"], None)
    with pytest.raises(ValueError, match="reduction='none', which sample_weight_col needs"):
        losses([torch.zeros(2)], [torch.zeros(2)], torch.ones(2))


def test_metrics_of_several_labels_have_the_labels_names():
    def off(output, label):
        return (output - label).abs().max()

    assert Metrics([off], ["a"]).names == ["off"]
    metrics = Metrics({"worst": off}, ["a", "b"])
    assert metrics.names == ["a_worst", "b_worst"]
    assert metrics([torch.ones(2)] * 2, [torch.zeros(2), torch.ones(2)]) == [1.0, 0.0]


def trained():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_an_optimizer_pickled_with_its_model_still_changes_it():
    model, optimizer = cloudpickle.loads(cloudpickle.dumps(trained()))
    attach(optimizer, model)
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_an_optimizer_is_moved_to_a_copy_of_its_model_with_its_state():
    model, optimizer = trained()
    other = copy.deepcopy(model)
    attach(optimizer, other)
    assert optimizer.param_groups[0]["params"][0] is other.weight
    assert set(optimizer.state) == set(other.parameters())


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"parameters that are not the model's"):
        attach(trained()[1], torch.nn.Linear(3, 1))


def test_learning_rates_are_scaled():
    _, optimizer = trained()
    scale_rates(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("given", "shape"),
    [(None, (4, 6)), ([2, 3], (4, 2, 3)), ([-1, 1, 6], (4, 1, 6)), ([-1, 2], (12, 2))],
)
def test_rows_take_the_given_shape(given, shape):
    assert shaped(np.zeros((4, 6)), given, "x").shape == shape


def test_a_shape_that_does_not_fit_names_the_column():
    with pytest.raises(ValueError, match=r"column `x` has rows of shape \(6,\)"):
        shaped(np.zeros((4, 6)), [5], "x")


def doubled(frame):
    frame["x"] = frame["x"] * 2
    frame["wide"] = [np.full(3, value) for value in frame["x"]]
    return frame


@pytest.mark.parametrize("given", [doubled, lambda: doubled])
def test_a_transformation_changes_batches(given):
    change = Transformation(given, [("x", np.float32, (1,), False)], ["y"])
    batch = change({"x": np.arange(2.0), "y": np.arange(2), "v": np.zeros((2, 4))})
    assert list(batch) == ["x", "v", "wide"]
    assert batch["x"].dtype == np.float32 and batch["x"].tolist() == [[0.0], [2.0]]
    assert batch["v"].shape == (2, 4) and batch["wide"].shape == (2, 3)


def test_a_transformation_that_returns_nothing_is_refused():
    with pytest.raises(TypeError, match="return a pandas DataFrame"):
        Transformation(lambda frame: None)({"x": np.zeros(2)})


@pytest.mark.parametrize(("done", "epochs", "first"), [(0, 3, 0), (2, 3, 2), (3, 3, 0), (5, 3, 0)])
def test_a_run_goes_on_where_it_ended_and_starts_again_when_it_was_done(done, epochs, first):
    assert first_epoch(done, epochs) == first


@pytest.fixture(params=["local", "memory"])
def job(request, tmp_path):
    """Ten rows in a store, five of them also for validation."""
    prefix = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
    store = Store.create(prefix)
    for path, rows in ((store.get_train_data_path(), 10), (store.get_val_data_path(), 5)):
        table = pa.table({"x": [[float(row)] * 2 for row in range(rows)], "y": range(rows)})
        place = store.get_localized_path(path)
        store.fs.makedirs(place)
        with store.fs.open(f"{place}/part-0.parquet", "wb") as file:
            parquet.write_table(table, file)
    data = describe(store, None, ["x", "y"], 0.5)
    assert (data.train_rows, data.val_rows, data.columns["x"].shape) == (10, 5, (2,))
    model = torch.nn.Linear(2, 1)
    own = TorchEstimator(model=model, feature_cols=["x"], label_cols=["y"], batch_size=4)
    params = {name: own.getOrDefault(name) for name in own._table}
    return Job.unpacked(Job(store.to_remote("run"), data, params, "run").packed())


def rows_of(batches):
    return [int(label) for batch in batches for label in batch.labels[0]]


def test_an_epoch_has_every_row_and_the_next_one_another_order(job):
    batches = job.train_batches()
    assert batches.steps == 3
    first, second = rows_of(batches.epoch()), rows_of(batches.epoch())
    assert len(first) == 12 and set(first) == set(second) == set(range(10))
    assert first != second
    batches.start_at(0)
    assert rows_of(batches.epoch()) == first


def test_epochs_with_fewer_steps_go_on_where_the_last_one_ended(job):
    job.params["train_steps_per_epoch"] = 1
    batches = job.train_batches()
    shown = [rows_of(batches.epoch()) for _ in range(3)]
    assert [len(rows) for rows in shown] == [4, 4, 4]
    assert {row for rows in shown for row in rows} == set(range(10))


def test_validation_sees_each_row_once_and_in_order(job):
    batches = job.val_batches("join")
    assert rows_of(batches.whole()) == rows_of(batches.whole()) == list(range(5))


def test_data_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no Parquet files in `file:.*_train_data\.7`"):
        describe(Store.create(str(tmp_path)), 7, ["x"], None)
