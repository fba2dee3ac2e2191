"""The columns of a table of messages, and how a user's own schema chooses among them.

Touches  nothing of Spark's JVM: plain types.

    column            Spark type             what it is
    topic             string
    brokerName        string                 the broker that has the message; null where a folder does not tell
    queueId           int
    queueOffset       long                   number of the message in its queue
    storeTimestamp    timestamp              when the broker took it
    bornTimestamp     timestamp              when the sender made it
    msgId             string                 the sender's unique id (UNIQ_KEY), else the id that names its place
    tags              string
    keys              array<string>          empty without keys
    properties        map<string, string>    without the record's checksum
    body              binary                 decompressed
    commitLogOffset   long                   byte position in the broker's commit log

`schemaMode=kafka` gives the columns of Spark's Kafka source instead: key (the first of KEYS), value (the body), topic,
partition (queueId), offset (queueOffset), timestamp (storeTimestamp), timestampType (1: the broker's time), and with
`includeHeaders` headers (the properties).

Spark does not tell a Python source which columns a query needs, so a `.schema("topic string, body binary")` of the
reader does: only those columns are built, in that order.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.names import nearest

__all__ = ["COLUMNS", "DAMAGE_SCHEMA", "KAFKA_COLUMNS", "check_schema", "message_schema"]

COLUMNS: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "storeTimestamp": TimestampType(),
    "bornTimestamp": TimestampType(),
    "msgId": StringType(),
    "tags": StringType(),
    "keys": ArrayType(StringType()),
    "properties": MapType(StringType(), StringType()),
    "body": BinaryType(),
    "commitLogOffset": LongType(),
}
KAFKA_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
# What a store folder holds that is not a message any more: `option("table", "damage")`.
DAMAGE_SCHEMA: Final = StructType(
    [
        StructField("file", StringType()),
        StructField("beginOffset", LongType()),
        StructField("endOffset", LongType()),
        StructField("reason", StringType()),
    ]
)


def message_schema(
    *,
    kafka: bool = False,
    include_properties: bool = True,
    include_body: bool = True,
    include_headers: bool = False,
) -> StructType:
    """All columns of a read with these options."""
    if kafka:
        columns = dict(KAFKA_COLUMNS)
        if not include_headers:
            del columns["headers"]
    else:
        columns = dict(COLUMNS)
        if not include_properties:
            del columns["properties"]
        if not include_body:
            del columns["body"]
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(expected: StructType, offered: StructType) -> None:
    """OptionError when the user's schema has a column or type that is not offered; Spark itself does not look."""
    types = {field.name: field.dataType for field in offered}
    for field in expected:
        kind = types.get(field.name)
        if kind is None:
            hint = nearest(field.name, types)
            raise OptionError(
                "schema", field.name, f"there is no such column{hint}; there are: {', '.join(types)}"
            )
        if field.dataType != kind:
            raise OptionError(
                "schema",
                f"{field.name} {field.dataType.simpleString()}",
                f"the column is {kind.simpleString()}; cast it in the query instead",
            )
