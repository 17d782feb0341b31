"""Values for the Helm chart: every one of them with something else than its default."""

MPI_ARGS = (
    "--mca orte_keep_fqdn_hostnames t --allow-run-as-root --display-map --tag-output"
    " --timestamp-output"
)
GPUS = {"limits": {"nvidia.com/gpu": 4, "memory": "64Gi"}}
CASES = {
    "defaults": {},
    "a command": {
        "driver": {
            "args": ["horovodrun -np 4", "python train.py"],
            "retries": 2,
            "waitForWorkers": 2,
        }
    },
    "a command as text": {
        "driver": {
            "args": f'horovodrun --mpi-args "{MPI_ARGS}" train.py',
            "waitForWorkers": 0,
            "waitSeconds": 9,
        }
    },
    "gpus for both": {"resources": GPUS},
    "gpus for workers": {
        "worker": {"resources": GPUS, "slots": None},
        "driver": {"resources": {"limits": {"cpu": 1}}, "slots": 0, "activeDeadlineSeconds": 60},
    },
    "environments": {
        "env": {"NCCL_DEBUG": "INFO"},
        "worker": {"env": {"COUNT": 1000000, "FLAG": True}},
        "driver": {
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        },
    },
    "ssh": {"ssh": {"useSecret": True, "port": 12345}},
    "ssh, the other name": {"ssh": {"useSecrets": True}},
    "a claim": {
        "datasetPvc": {
            "enabled": True,
            "size": "1Ti",
            "storageClass": "fast",
            "keep": False,
            "accessModes": ["ReadOnlyMany"],
        },
    },
    "an existing claim": {
        "datasetPvc": {"enabled": True, "existing": "imagenet", "mountPath": "/imagenet"},
    },
    "volumes": {
        "volumes": [{"name": "code", "configMap": {"name": "code"}}],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        "worker": {
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        },
        "driver": {"volumes": [{"name": "logs", "emptyDir": {}}], "volumeMounts": []},
        "shmSize": "",
        "home": "/home/me",
    },
    "the host's namespaces": {
        "useHostNetwork": True,
        "useHostPID": True,
        "worker": {"privileged": True},
        "driver": {"privileged": True},
    },
    "scheduling": {
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"role": "worker"}},
                    }
                ]
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "priorityClassName": "low",
        "runtimeClassName": "nvidia",
        "schedulerName": "volcano",
        "labels": {"kueue.x-k8s.io/queue-name": "training"},
        "annotations": {"sidecar.istio.io/inject": "false"},
        "worker": {
            "nodeSelector": {"gpu": "a100"},
            "priorityClassName": "high",
            "labels": {"team": "vision"},
            "annotations": {"note": "1"},
            "terminationGracePeriodSeconds": 600,
        },
        "driver": {
            "tolerations": [{"operator": "Exists"}],
            "affinity": {},
            "terminationGracePeriodSeconds": 5,
        },
    },
    "registries and accounts": {
        "imagePullSecrets": ["first", {"name": "second"}],
        "serviceAccountName": "trainer",
        "worker": {
            "image": {"repository": "example.com/ronde", "tag": "1", "pullPolicy": "Always"}
        },
        "driver": {"image": {"repository": "example.com/ronde", "tag": "2", "pullPolicy": "Never"}},
        "agent": {"existingSecret": "keys", "port": 4000},
    },
    "another user": {
        "podSecurityContext": {"runAsUser": 2000, "fsGroup": 2000},
        "securityContext": {"readOnlyRootFilesystem": False},
        "worker": {"securityContext": {"runAsGroup": 3}, "podSecurityContext": {"runAsUser": 4}},
    },
    "workers that stay": {"worker": {"kind": "StatefulSet", "podManagementPolicy": "OrderedReady"}},
    "no limits of time": {"ttlSecondsAfterFinished": None, "worker": {"leaveAfterSeconds": 0}},
    "names": {"nameOverride": "horovod"},
    "a long name": {"fullnameOverride": "x" * 80},
}
