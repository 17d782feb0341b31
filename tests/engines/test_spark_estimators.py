"""The Spark estimators on a real cluster: they learn a line, and their models predict it."""

import json
import os
import signal
import subprocess
import sys

import cloudpickle
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 2000
# Ranks import torch, which takes a busy machine long.
patient = pytest.mark.timeout(300, func_only=True)


@pytest.fixture(scope="module")
def spark(spark_cluster):
    with spark_cluster.session() as session:
        yield session


@pytest.fixture
def line(spark):
    """A DataFrame with y = 2 x + 1, in which a vector and an array say the same as x."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql.functions import array, col

    points = spark.range(0, ROWS, 1, 4).selectExpr(f"id / {ROWS} AS x", f"2 * id / {ROWS} + 1 AS y")
    return points.select(
        "x", "y", array_to_vector(array(col("x"))).alias("v"), array("x").alias("a")
    )


def torch_estimator(store, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    whole = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.2),
        "loss": torch.nn.MSELoss(),
        "feature_cols": ["v"],
        "label_cols": ["y"],
        "input_shapes": [[-1, 1]],
        "batch_size": 16,
        "epochs": 3,
        "partitions_per_process": 1,
    }
    return TorchEstimator(**{**whole, **options})


def check_predictions(model, frame, name="y__output", type_="double"):
    """The model predicts the line, next to all columns that were there."""
    some = model.transform(frame.limit(3))
    assert some.columns == [*frame.columns, name]
    assert dict(some.dtypes)[name] == type_
    for row in some.collect():
        value = row[name] if type_ == "double" else row[name][0]
        assert value == pytest.approx(row["y"], abs=0.05)


@patient
def test_a_torch_model_learns_a_line_and_predicts_it(line, tmp_path, capfd):
    store = Store.create(str(tmp_path))
    estimator = torch_estimator(store, validation=0.2, run_id="line", metrics=[absolute])
    model = estimator.fit(line)
    history = model.getHistory()
    assert [entry["epoch"] for entry in history] == [0, 1, 2]
    assert history[-1]["train"]["loss"] < history[0]["train"]["loss"]
    assert history[-1]["validation"]["loss"] < 1e-3 and "absolute" in history[0]["validation"]
    assert model.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.2)
    assert model.getOptimizer().param_groups[0]["params"][0] is model.getModel().weight
    assert estimator.getModel().weight.item() != model.getModel().weight.item()
    assert "line: epoch 3/3: loss " in capfd.readouterr().out
    assert store.exists(store.get_checkpoint_path("line"))
    check_predictions(model, line)


def absolute(output, label):
    return (output - label).abs().mean()


@patient
@pytest.mark.long
def test_row_groups_of_any_size_are_dealt_out_evenly(spark, tmp_path):
    store = Store.create(str(tmp_path))
    folder = tmp_path / "intermediate_train_data"
    folder.mkdir()
    for number, (rows, group) in enumerate([(700, 700), (11, 3), (1, 1), (288, 100)]):
        x = [place / rows for place in range(rows)]
        table = pa.table({"x": x, "y": [2 * each + 1 for each in x]})
        parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=group)
    seen = Counting()
    estimator = torch_estimator(
        store, feature_cols=["x"], callbacks=[seen], batch_size=50, epochs=6
    )
    model = estimator.fit_on_parquet()
    assert len(model.getHistory()) == 6
    assert model.getModel().weight.item() == pytest.approx(2, abs=0.1)


class Counting:
    """A callback that all ranks call alike: a collective in it would hang otherwise."""

    def on_epoch_end(self, epoch, logs):
        import horovod.torch as hvd

        assert hvd.allgather_object(epoch) == [epoch] * hvd.size() and logs["loss"] >= 0


@patient
def test_a_dead_rank_is_named(line, tmp_path):
    estimator = torch_estimator(Store.create(str(tmp_path)), callbacks=[Dying()])
    with pytest.raises(RuntimeError, match=r"rank 1.*signal 9"):
        estimator.fit(line)


class Dying:
    def on_epoch_end(self, epoch, logs):
        import horovod.torch as hvd

        if hvd.rank() == 1 and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@patient
def test_a_store_that_cannot_be_written_is_named(line, tmp_path):
    (tmp_path / "file").write_text("")
    estimator = torch_estimator(Store.create(f"{tmp_path}/file/store"))
    with pytest.raises(RuntimeError, match=r"could not write the data to `file:.*/file/store"):
        estimator.fit(line)


@patient
@pytest.mark.long
def test_a_checkpoint_that_cannot_be_written_is_named(line, tmp_path):
    (tmp_path / "file").write_text("")
    store = Store.create(str(tmp_path), runs_path=f"{tmp_path}/file/runs")
    with pytest.raises(RuntimeError, match=r"checkpoint could not be written to `file:.*/runs"):
        torch_estimator(store).fit(line)


@patient
@pytest.mark.long
def test_a_run_that_was_interrupted_is_resumed(line, tmp_path, capfd):
    store = Store.create(str(tmp_path))
    with pytest.raises(RuntimeError, match="rank 1"):
        torch_estimator(store, run_id="again", epochs=4, callbacks=[Dying()]).fit(line)
    model = torch_estimator(store, run_id="again", epochs=4).fit(line)
    assert "resumed after epoch " in capfd.readouterr().out
    assert [entry["epoch"] for entry in model.getHistory()] == [0, 1, 2, 3]
    # The second fit of the same DataFrame finds what the first has written.
    assert store.exists(store.get_train_data_path(0))
    assert not store.exists(store.get_train_data_path(1))


@patient
@pytest.mark.long
def test_a_column_chooses_validation_and_another_weighs_rows(line, tmp_path):
    from pyspark.sql.functions import col, when

    # Rows with a wrong label have no weight.
    weight = when(col("x") < 0.3, 0.0).otherwise(1.0)
    marked = line.withColumn("check", col("x") > 0.9).withColumn("w", weight)
    wrong = marked.withColumn("y", when(col("x") < 0.3, 100.0).otherwise(col("y")))
    estimator = torch_estimator(
        Store.create(str(tmp_path)), validation="check", sample_weight_col="w", epochs=20
    )
    model = estimator.fit(wrong)
    assert model.getHistory()[-1]["validation"]["loss"] < 0.01
    check_predictions(model, line)


@patient
@pytest.mark.long
def test_several_inputs_and_outputs_become_columns_of_their_kinds(line, tmp_path):
    model = Both()
    estimator = torch_estimator(
        Store.create(str(tmp_path)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        feature_cols=["x", "a"],
        input_shapes=[[-1, 1], [-1, 1]],
        label_cols=["y", "v", "a"],
        loss=None,
        loss_constructors=[torch.nn.MSELoss],
        transformation_fn=lambda frame: frame,
    )
    trained = estimator.fit(line).setOutputCols(["p", "q", "r"])
    predicted = trained.transform(line.limit(2))
    kinds = dict(predicted.dtypes)
    assert (kinds["p"], kinds["q"], kinds["r"]) == ("double", "vector", "array<double>")
    row = predicted.first()
    assert len(row["q"]) == 1 and len(row["r"]) == 1


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, x, a):
        return self.layer(torch.cat([x, a], 1)).split(1, 1)


FRESH = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.ml import PipelineModel
from horovod.spark.torch import TorchEstimator, TorchModel
folder = sys.argv[1]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([(0.5, 2.0)], "x double, y double")
model, whole = TorchModel.load(folder + "/model"), PipelineModel.load(folder + "/whole")
rows = [each.transform(frame).first()["y__output"] for each in (model, whole)]
estimator = TorchEstimator.load(folder + "/estimator")
own = estimator.getOptimizer().param_groups[0]["params"][0] is estimator.getModel().weight
print("JSON", json.dumps([rows, estimator.getEpochs(), own, len(model.getHistory())]))
"""


@patient
@pytest.mark.long
def test_what_was_saved_is_loaded_in_a_fresh_process(line, tmp_path):
    from pyspark.ml import Pipeline

    folder = tmp_path / "saved"
    estimator = torch_estimator(Store.create(str(tmp_path)), feature_cols=["x"])
    pipeline = Pipeline(stages=[estimator]).fit(line)
    model = pipeline.stages[0]
    for _ in range(2):
        model.write().overwrite().save(f"file://{folder}/model")
    with pytest.raises(Exception, match="already exists"):
        model.save(f"file://{folder}/model")
    pipeline.save(f"file://{folder}/whole")
    estimator.save(f"file://{folder}/estimator")
    rows, epochs, own, entries = told_by(FRESH, f"file://{folder}")
    assert rows == pytest.approx([2.0, 2.0], abs=0.05) and (epochs, own, entries) == (3, True, 3)


CONNECTED = """
import json, sys
import torch
from pyspark.sql import SparkSession
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator, TorchModel
folder = sys.argv[1]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.api.mode", "connect").getOrCreate()
frame = spark.range(0, 400, 1, 2).selectExpr("id / 400 AS x", "2 * id / 400 + 1 AS y")
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
estimator = TorchEstimator(
    store=Store.create(folder), num_proc=2, model=net, optimizer=optimizer, epochs=30,
    loss=torch.nn.MSELoss(), feature_cols=["x"], label_cols=["y"], input_shapes=[[-1, 1]],
    batch_size=16, partitions_per_process=1, validation=0.2,
)
model = estimator.fit(frame)
model.write().overwrite().save(f"file://{folder}/model")
row = TorchModel.load(f"file://{folder}/model").transform(frame.limit(1)).first()
print("JSON", json.dumps(["connect" in type(spark).__module__, row["y"], row["y__output"]]))
spark.stop()
"""


@patient
@pytest.mark.long
def test_an_estimator_works_over_spark_connect(tmp_path):
    connected, right, predicted = told_by(CONNECTED, tmp_path)
    assert connected and predicted == pytest.approx(right, abs=0.1)


def told_by(program, folder):
    """Runs a program in a process of its own; returns what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = next(each for each in done.stdout.splitlines() if each.startswith("JSON"))
    return json.loads(told.removeprefix("JSON"))
