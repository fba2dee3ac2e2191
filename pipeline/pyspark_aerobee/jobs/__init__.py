"""Jobs around a message broker that run on Spark: archive, restore, audit, reindex, lag.

from pyspark_aerobee.jobs.archive import archive
python -m pyspark_aerobee.jobs.archive --path /data/store /data/archive
spark-submit --master spark://... -m ... (docs/pipeline.md)
aerobee pipeline archive --path /data/store /data/archive
"""
