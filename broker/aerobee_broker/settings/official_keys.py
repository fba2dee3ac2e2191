"""RocketMQ's settings that have no meaning in this broker, each with the reason that the operator is told.

They are the keys of a 5.3.3 broker's own list (and a few of 4.9) that `BrokerConfig` does not have. A
`broker.conf` that was written for RocketMQ, and an update of a running broker, are taken with one warning for each of
them; but not what would promise safety that there is not (`PROMISING_KEYS`).
"""

from typing import Final

__all__ = ["PROMISING_KEYS", "UNSUPPORTED_KEYS"]

_BY_REASON: Final = {
    "there are no thread pools and no queues before them: one event loop serves all requests": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity asyncSendEnable batchDispatchRequestThreadPoolNums
        brokerFastFailureEnable clientAsyncSemaphoreValue clientCallbackExecutorThreads
        clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
        clientWorkerThreads compactionThreadNum consumerManageThreadPoolNums
        consumerManagerThreadPoolQueueCapacity disableCallbackExecutor disableNettyWorkerGroup
        dispatchCqThreads enableFastChannelEventProcess endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
        loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
        maxAsyncPutMessageRequests processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity recoverThreadPoolNums
        replyThreadPoolQueueCapacity sendMessageThreadPoolNums sendThreadPoolQueueCapacity
        serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
        serverOnewaySemaphoreValue serverSelectorThreads serverWorkerThreads
        timerGetMessageThreadNum timerPutMessageThreadNum waitTimeMillsInAckQueue
        waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue
        waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    """,
    "there is no such pool or buffer here: the log is a mapped file, flushed as a whole": """
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
        commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
        dataReadAheadEnable debugLockEnable dispatchCqCacheNum dispatchFromSenderThread
        enableAsyncReput enableBuildConsumeQueueConcurrently fastFailIfNoBufferInStorePool
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
        flushLeastPagesWhenWarmMapedFile isolateLogEnable logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSwapEnable
        maxOffsetMapSize messageIndexSafe osPageCacheBusyTimeOutMills
        putConsumeQueueDataByFileChannel putMessageTimeout putMsgIndexHightWater
        serverPooledByteBufAllocatorEnable serverSocketRcvBufSize serverSocketSndBufSize
        spinLockCollisionRetreatOptimalDegree topicQueueLockNum transferMsgByHeap
        transientStorePoolEnable transientStorePoolSize useABSLock useEpollNativeSelector
        useReentrantLockWhenPutMessage wakeCommitWhenPutMessage wakeFlushWhenPutMessage
        writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "there is no RocksDB store, and queues have no files beside them": """
        bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
        cleanRocksDBDirtyCQIntervalMin configManagerVersion enableCalcFilterBitMap
        enableConsumeQueueExt enableLmq enableLmqStats enableMultiDispatch enableRocksDBLog
        mappedFileSizeConsumeQueueExt maxLmqConsumeQueueNum
        memTableFlushIntervalMs realTimePersistRocksDBConfig rocksdbCQDoubleWriteEnable
        rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
        searchBcqByCacheEnable statRocksDBCQIntervalSec storeType
    """,
    "POP writes what it hands out at once and keeps it in memory; there is no buffer, thread or second store": """
        appendAckAsync appendCkAsync enablePopBatchAck enablePopBufferMerge enablePopLog estimateAccumulation
        enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag popCkOffsetMaxQueueSize
        popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
        popConsumerKVServiceInit popConsumerKVServiceLog popLongPollingForceNotifyInterval popPollingMapSize
        popResponseReturnActualRetryTopic popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
        reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
        skipWhenCKRePutReachMaxTimes
    """,
    "the timer has no such setting": """
        compactionScheduleInternal enableScheduleAsyncDeliver enableScheduleMessageStats
        scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked timerCheckMetricsWhen timerColdDataCheckIntervalMs
        timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor
        timerEnableRetryUntilSuccess timerFlushIntervalMs timerInterceptDelayLevel
        timerMetricSmallThreshold timerProgressLogIntervalMs
        timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable
    """,
    "there is no controller and no acting master": """
        asyncLearner brokerElectionPriority brokerHeartbeatInterval
        brokerNotActiveTimeoutMillis checkSyncStateSetPeriod compatibleWithOldNameSrv controllerAddr
        controllerHeartBeatTimeoutMills dLegerGroup dLegerPeers dLegerSelfId diskFallRecorded
        enableControllerMode enableDLedgerCommitLog
        enableDLegerCommitLog enableRemoteEscape enableSlaveActingMaster enableSplitRegistration
        fetchControllerAddrByDnsLookup forwardTimeout
        isBrokerContainer isInBrokerContainer lockInStrictMode
        sendHeartbeatTimeoutMillis skipPreOnline
        splitRegistrationSize storePathBrokerIdentity storePathEpochFile syncBrokerMemberGroupPeriod
        syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFromLastFile
    """,
    "the link that it bounds needs no such bound: a slave is sent what it asks for, one piece at a time": """
        haSlaveFallbehindMax maxSlaveResendLength
    """,
    "a slave compares its log with the master's when they meet": """
        syncMasterFlushOffsetWhenStartup
    """,
    "compaction topics are not served": """
        compactionCqMappedFileSize compactionMappedFileSize enableCompaction maxChecksumRange
    """,
    "cold reads are not throttled": """
        cgColdReadThreshold coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
        globalColdReadThreshold usePIDColdCtrStrategy
    """,
    "SQL92 filters look at each message, without Bloom filters": """
        expectConsumerNumUseFilter filterDataCleanTimeSpan filterSupportRetry
        maxErrorRateOfBloomFilter
    """,
    "nameservers are listed in namesrvAddr; there is no look-up of them elsewhere": """
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
        connectTimeoutMillis enableReconnectForGoAway fetchNameSrvAddrByDnsLookup
        fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval isScanAvailableNameSrv
        loadBalancePollNameServerInterval maxReconnectIntervalTimeSeconds rmqAddressServerDomain
        rmqAddressServerSubGroup socksProxyConfig updateNameServerAddrPeriod
    """,
    "expired files go one at a time, without such a setting": """
        autoDeleteUnusedStats cleanSwapedMapInterval correctLogicMinOffsetForceInterval
        correctLogicMinOffsetSleepInterval deleteCommitLogFilesInterval
        deleteConsumeQueueFilesInterval deleteFileBatchMax destroyMapedFileIntervalForcibly
        logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum redeleteHangedFileInterval
    """,
    "recovery decides this from what it finds on disk": """
        checkCRCOnRecover maxRecoveryCommitlogFiles recheckReputOffsetFromCq recoverConcurrently
    """,
    "statistics are always kept, in a form without this setting": """
        accountStatsEnable accountStatsPrintZeroValues commercialBaseCount commercialSizePerMsg
        enableDetailStat maxStatsIdleTimeInMinutes metricGrpcExporterIntervalInMills
        metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
        metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
        metricsOtelCardinalityLimit printChannelGroups printChannelGroupsMinNum sampleCountThreshold
        sampleSteps transactionMetricFlushInterval
    """,
    "this broker has nothing that it could change": """
        accessMessageInMemoryHotRatio allowRecallWhenBrokerNotWriteable autoMessageVersionOnTopicLen
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerConfigPath
        cleanOfflineBrokerInterval configBlackList consumerFallbehindThreshold
        consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep
        disableConsumeIfConsumerReadSlowly disappearTimeAfterStart enableBatchPush
        enableBroadcastOffsetStore enableCleanExpiredOffset enableCreateSysGroup
        enableMixedMessageType enableNetWorkFlowControl enableRegisterProducer
        enableShutdownGracefully enableSingleTopicRegistration enableSkipLongAwaitingAck
        flushConsumerOffsetHistoryInterval highSpeedMode maxConsumeQueueScan maxTopicLength
        messageStorePlugIn pullBatchMaxMessageCount readUnCommitted
        realTimeNotifyConsumerChange rejectPullConsumerEnable replicasPerDiskPartition rocketmqHome
        serverSocketBacklog shutdownWaitTimeSeconds startAcceptSendRequestTimeStamp
        subscriptionExpiredTimeout
        travelCqFileNumWhenGetMessage useStaticSubscription warmMapedFileEnable
    """,
}

UNSUPPORTED_KEYS: Final[dict[str, str]] = {
    key: reason for reason, keys in _BY_REASON.items() for key in keys.split()
}

# Those of them that ask for a promise which this broker does not keep: the value that asks for nothing, and why.
PROMISING_KEYS: Final[dict[str, tuple[str, str]]] = {
    "asyncLearner": (
        "false",
        "each slave that has caught up is in sync, and may become the master: leave it out",
    ),
    "enableControllerMode": (
        "false",
        "there is no controller; name an etcd in electionEndpoints, or set brokerRole and brokerId",
    ),
    "enableDLedgerCommitLog": (
        "false",
        "such a log is not served; set brokerRole, brokerId and inSyncReplicas",
    ),
    "enableDLegerCommitLog": (
        "false",
        "such a log is not served; set brokerRole, brokerId and inSyncReplicas",
    ),
    "enableSlaveActingMaster": (
        "false",
        "a slave does no work of its master here; leave it out, and promote the slave when the master stays away",
    ),
    "syncFromLastFile": (
        "false",
        "a slave of ours takes the whole log that its master has, not its last file alone: leave it out",
    ),
    "syncMasterFlushOffsetWhenStartup": (
        "false",
        "a slave does not cut its log back by that; it compares it with the master's when they meet: leave it out",
    ),
    "storeType": ("default", "the only form of store is the default one; a RocksDB store cannot be read"),
}
