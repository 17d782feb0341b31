"""What is in the images, and what is not."""

import pytest
from machines import CPU, CUDA, LIMIT_SECONDS, SLIM, WHERE, python, shell, succeeds

IMAGES = (SLIM, CPU, CUDA)
PATHS = (
    "pytorch/pytorch_mnist.py",
    "pytorch/pytorch_synthetic_benchmark.py",
    "pytorch/pytorch_lightning_mnist.py",
    "elastic/pytorch/pytorch_mnist_elastic.py",
    "elastic/pytorch/pytorch_imagenet_resnet50_elastic.py",
    "tensorflow/tensorflow_mnist.py",
    "tensorflow2/tensorflow2_mnist.py",
    "tensorflow2/tensorflow2_keras_mnist.py",
    "keras/keras_mnist.py",
    "keras/keras_mnist_advanced.py",
    "keras_mnist_advanced.py",
)
# Users: the image's own, another by name, and one that has no entry and no home.
USERS = ("", "--user ronde", "--user 12345:12345")


@pytest.mark.parametrize("image", IMAGES)
def test_no_image_contains_a_key(node7, image):
    keys = "find / -xdev ( -name ssh_host_* -o -name id_* -o -name authorized_keys ) -type f"
    found = node7.must("run", "--rm", image, *keys.split())
    assert [line for line in found.splitlines() if "/usr/" not in line] == []


@pytest.mark.parametrize("image", IMAGES)
def test_examples_are_where_people_look_for_them(node7, image):
    paths = " ".join(f"/horovod/examples/{path}" for path in PATHS)
    line = f"docker run --rm {image} sh -c 'pwd; python -m py_compile {paths}'"
    assert succeeds(shell(node7, line)) == "/horovod/examples\n"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("image", IMAGES)
def test_every_user_can_run_a_job(node7, image, user):
    run = f"docker run --rm {user} {image}"
    assert "[X] Gloo" in succeeds(shell(node7, f"{run} horovodrun --check-build"))
    output = succeeds(shell(node7, f"{run} horovodrun -np 4 {python(WHERE)}"))
    assert output.count(" of 4 on ") == 4


@pytest.mark.parametrize("user", USERS)
def test_a_login_shell_keeps_the_path(node7, user):
    line = f"docker run --rm {user} -e PATH=/mine/bin:/usr/local/bin:/usr/bin:/bin {SLIM}"
    output = succeeds(shell(node7, f"{line} bash -lc 'echo $PATH; command -v horovodrun python'"))
    assert output.split() == [
        "/mine/bin:/usr/local/bin:/usr/bin:/bin",
        "/usr/local/bin/horovodrun",
        "/usr/local/bin/python",
    ]


def test_users_can_install_packages(node7, machines):
    wheel = machines.share / "greeting-1.0-py3-none-any.whl"
    make = f'docker run --rm -v /mnt/share:/mnt/share {SLIM} python -c "{WHEEL}"'
    succeeds(shell(node7, make))
    install = (
        f"pip install --quiet --no-index /mnt/share/{wheel.name} && python -c 'import greeting'"
    )
    for user in ("", "--user ronde"):
        line = f'docker run --rm {user} -v /mnt/share:/mnt/share {SLIM} bash -c "{install}"'
        succeeds(shell(node7, line))


# Makes a small wheel.
WHEEL = """
import zipfile
with zipfile.ZipFile('/mnt/share/greeting-1.0-py3-none-any.whl', 'w') as file:
    info = 'greeting-1.0.dist-info/'
    file.writestr('greeting.py', '')
    file.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: greeting\\nVersion: 1.0\\n')
    file.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')
    file.writestr(info + 'RECORD', '')
""".strip()


def test_processes_that_lost_their_parent_are_reaped(node7):
    program = "sh -c 'sh -c \"true &\"; sleep 1; ps -o stat= -A'"
    states = succeeds(shell(node7, f"docker run --rm {SLIM} {program}"))
    assert "Z" not in states


def test_a_container_with_sshd_stops_when_told_to(node7):
    node7.must("run", "-d", "--name", "one", SLIM, "/usr/sbin/sshd", "-p", "12345", "-D")
    node7.must("stop", "-t", LIMIT_SECONDS, "one")
    assert node7.must("inspect", "-f", "{{.State.ExitCode}}", "one") != "137"
