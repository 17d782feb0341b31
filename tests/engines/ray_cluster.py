"""A Ray cluster of several nodes on this machine."""


class RayCluster:
    """Two nodes, each with two CPUs; this process is connected to the cluster as its driver.

    `cluster` is Ray's own `cluster_utils.Cluster`, for tests that add or remove nodes.
    """

    def __init__(self, nodes=2, cpus=2):
        import ray
        from ray.cluster_utils import Cluster

        # Ray waits for its raylet for 30 s, which a busy machine may need more than once.
        for attempt in range(3):
            self.cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": cpus, "include_dashboard": False},
            )
            try:
                for _ in range(nodes - 1):
                    self.cluster.add_node(num_cpus=cpus)
                break
            except Exception:
                self.cluster.shutdown()
                if attempt == 2:
                    raise
        ray.init(address=self.cluster.address, log_to_driver=False)

    def stop(self):
        import ray

        ray.shutdown()
        self.cluster.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
