"""Names of the options of reads and writes of topics; the modules that use them tell what they mean.

Touches  nothing, and imports nothing that is large: every Python worker that Spark starts imports it.
"""

from typing import Final

__all__ = ["CLUSTER_OPTIONS", "TOPIC_OPTIONS", "WRITE_OPTIONS"]

CLUSTER_OPTIONS: Final = (
    "nameServer",
    "namesrvAddr",
    "accessKey",
    "secretKey",
    "tls",
    "pullTimeoutMs",
    "pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "pullBatchSize",
)
TOPIC_OPTIONS: Final = (
    *CLUSTER_OPTIONS,
    "subscribe",
    "topic",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "subExpression",
    "filterType",
    "tags",
    "queueId",
    "brokerName",
    "key",
    "includeProperties",
    "includeBody",
    "includeHeaders",
    "schemaMode",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxPartitionBytes",
    "group",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "pushdown",
)
# The last two are Spark's own, which hands them over with the others.
WRITE_OPTIONS: Final = (
    *CLUSTER_OPTIONS,
    "topic",
    "sendTimeoutMs",
    "dedupProperty",
    "group",
    "checkpointLocation",
    "queryName",
)
