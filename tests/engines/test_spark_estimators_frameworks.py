"""The Spark estimators of Keras and Lightning on a real cluster: they learn a line."""

import sys

import cloudpickle
import pytest
import torch

from horovod.spark.common.store import Store

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 2000
# Ranks import a framework, which takes a busy machine long.
patient = pytest.mark.timeout(300, func_only=True)


@pytest.fixture(scope="module")
def spark(spark_cluster):
    with spark_cluster.session() as session:
        yield session


@pytest.fixture
def line(spark):
    return spark.range(0, ROWS, 1, 4).selectExpr(f"id / {ROWS} AS x", f"2 * id / {ROWS} + 1 AS y")


def whole(tmp_path, **options):
    return {
        "num_proc": 2,
        "store": Store.create(str(tmp_path)),
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": 16,
        "epochs": 3,
        "partitions_per_process": 1,
        **options,
    }


def check_predictions(model, frame):
    for row in model.transform(frame.limit(3)).collect():
        assert row["y__output"] == pytest.approx(row["y"], abs=0.1)


@patient
@pytest.mark.long
def test_a_lightning_module_learns_a_line_and_predicts_it(line, tmp_path):
    from horovod.spark.lightning import TorchEstimator

    options = whole(tmp_path, input_shapes=[[-1, 1]], label_shapes=[[-1, 1]], validation=0.2)
    model = TorchEstimator(model=lightning_line(), run_id="line", **options).fit(line)
    history = model.getHistory()
    assert len(history) == 3 and history[-1]["loss"] < history[0]["loss"]
    assert history[-1]["val_loss"] < 0.01
    check_predictions(model, line)


def lightning_line():
    import lightning.pytorch as pl

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x):
            return self.layer(x)

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self(batch["x"]), batch["y"])

        def validation_step(self, batch, _):
            loss = torch.nn.functional.mse_loss(self(batch["x"]), batch["y"])
            self.log("val_loss", loss, sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.2)

    return Line()


@patient
@pytest.mark.long
def test_lightning_trains_a_plain_module_and_resumes_it(line, tmp_path, capfd):
    from horovod.spark.lightning import TorchEstimator

    net = torch.nn.Linear(1, 1)
    estimator = TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.1),
        loss=torch.nn.MSELoss(),
        input_shapes=[[-1, 1]],
        run_id="plain",
        **whole(tmp_path, epochs=1),
    )
    estimator.fit(line)
    model = estimator.setEpochs(3).fit(line)
    assert "resumed after epoch 1" in capfd.readouterr().out and len(model.getHistory()) == 3
    check_predictions(model, line)


def keras_estimator(keras, tmp_path, **options):
    from horovod.spark.keras import KerasEstimator

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.2)
    shared = whole(tmp_path, validation=0.2, run_id="line", metrics=["mae"], **options)
    return KerasEstimator(model=model, optimizer=optimizer, loss="mse", **shared)


def check_keras(keras, estimator, line):
    model = estimator.fit(line)
    history = model.getHistory()
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    assert len(history["loss"]) == 3 and history["loss"][2] < history["loss"][0]
    assert float(model.getModel().optimizer.learning_rate) == pytest.approx(0.2)
    check_predictions(model, line)
    return model


@patient
def test_a_keras_model_learns_a_line_and_predicts_it(line, tmp_path):
    keras = pytest.importorskip("keras")
    check_keras(keras, keras_estimator(keras, tmp_path), line)


@patient
@pytest.mark.long
def test_a_keras_2_model_learns_a_line_and_predicts_it(line, tmp_path):
    keras = pytest.importorskip("tf_keras")
    check_keras(keras, keras_estimator(keras, tmp_path), line)


@patient
@pytest.mark.long
def test_a_keras_run_is_resumed_and_its_model_is_saved(line, tmp_path, capfd):
    keras = pytest.importorskip("keras")
    from horovod.spark.keras import KerasModel

    estimator = keras_estimator(keras, tmp_path, gradient_compression=None)
    estimator.setEpochs(2).fit(line)
    model = estimator.setEpochs(3).fit(line)
    assert "resumed after epoch 2" in capfd.readouterr().out
    assert len(model.getHistory()["loss"]) == 3
    model.save(f"file://{tmp_path}/model")
    check_predictions(KerasModel.load(f"file://{tmp_path}/model"), line)
