"""Jobs on a Spark cluster: `horovod.spark.run(train, num_proc=4)`.

Spark's tasks carry the agents of an ordinary job; see docs/design/0017-engines.md. Importing this
package does not import pyspark.
"""

from horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
