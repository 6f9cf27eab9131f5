"""Keys of Apache's properties files that are accepted without effect, and the old names of keys.

The names are every property of the BrokerConfig, MessageStoreConfig (the tiered one too), NamesrvConfig,
NettyServerConfig, NettyClientConfig, ControllerConfig, JraftConfig and AuthConfig of Apache 4.0 to 5.4. A key is in one
of three groups: a config obeys it, `promises` refuses it, or it is here, for it tunes the insides of Apache's programs
(threads, pools, Netty, caches, logs) or a part that is off, and no message fares worse without it.
The lists are sorted without regard to case.
"""

from __future__ import annotations

from collections.abc import Mapping

_NETTY = """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
    connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway
    enableShutdownGracefully enableTransparentRetry maxReconnectIntervalTimeSeconds scanAvailableNameSrv
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
    shutdownWaitTimeSeconds useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
"""

_CONTROLLER_AND_METRICS = """
    controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums electMasterMaxRetryCount
    jRaftElectionTimeoutMs jRaftScanWaitTimeoutMs jRaftSnapshotIntervalSecs mappedFileSize
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsGrpcExporterHeader metricsGrpcExporterTarget
    metricsInDelta metricsLabel metricsPromExporterHost metricsPromExporterPort notifyBrokerRoleChanged
    processReadEvent scanInactiveMasterInterval
"""

_NAME_SERVER = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity configBlackList defaultThreadPoolNums
    defaultThreadPoolQueueCapacity productEnvName unRegisterBrokerQueueCapacity
    waitSecondsForService
"""

_BROKER = """
    accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues
    ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum
    aclCacheRefreshSecond adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity appendAckAsync
    appendCkAsync asyncSendEnable autoDeleteUnusedStats autoMessageVersionOnTopicLen
    batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond
    broadcastOffsetExpireSecond brokerConfigPath brokerElectionPriority
    cgColdReadThreshold checkCRCOnRecover checkSyncStateSetPeriod
    cleanOfflineBrokerInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
    clearRetryTopicWhenDeleteTopic clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums
    clusterName coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf
    combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
    commercialBaseCount commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount
    commercialTransCount commitCommitLogLeastPages commitCommitLogThoroughInterval
    commitIntervalCommitLog commitLogForceSwapMapInterval commitLogRollingInterval
    commitLogRollingMinimumSize commitLogSwapMapInterval commitLogSwapMapReserveFileNum
    compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
    compressedRegister configName consumerFallbehindThreshold
    consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums consumerOffsetUpdateVersionStep
    controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
    dataReadAheadEnable debugLockEnable defaultQueryMaxNum delayOffsetUpdateVersionStep
    destroyMapedFileIntervalForcibly diskFallRecorded dispatchCqCacheNum dispatchCqThreads
    dispatchFromSenderThread enableAcceleratedRecovery enableAsyncReput enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
    enableConnectionMetrics enableCreateSysGroup enableDetailStat enableFastChannelEventProcess
    enableLagAndDlqMetrics enableLmqStats enableLogConsumeQueueRepeatedlyBuildWhenRecover
    enableMessageStoreMetrics enableMixedMessageType enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMetrics enableRegisterProducer enableRemotingMetrics
    enableRequestMetrics enableRocksDBLog enableRunningFlagsInFlush enableScheduleAsyncDeliver
    enableScheduleMessageStats enableSingleTopicRegister enableSkipLongAwaitingAck enableSplitMetadata
    enableSplitRegistration enableStatsMetrics enableTransactionMetrics endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
    fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval filterDataCleanTimeSpan flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumerOffsetHistoryInterval flushIntervalConsumeQueue
    flushLeastPagesWhenWarmMapedFile forceRegister forwardTimeout globalColdReadThreshold
    haMaxTimeSlaveNotCatchup heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode
    initPopOffsetByCheckMsgInMem isolateLogEnable litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums
    loadBalanceThreadPoolQueueCapacity logicalDiskSpaceCleanForciblyThreshold
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    mappedFileSizeConsumeQueueExt mappedFileSwapEnable mapperFileSizeBatchConsumeQueue
    maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxDelayTime
    maxErrorRateOfBloomFilter maxLmqConsumeQueueNum maxMsgsNumBatch maxOffsetMapSize
    maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength
    memTableFlushIntervalMs messageIndexSafe metricsOtelCardinalityLimit popCkMaxBufferSize
    popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceLog popInflightMessageThreshold popLongPollingForceNotifyInterval
    popPollingMapExpireTimeSeconds popPollingMapSize popReviveMaxAttemptTimes
    popReviveMaxReturnSizePerRead printChannelGroups printChannelGroupsMinNum
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums
    putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity readAheadCacheEnable readAheadCacheExpireDuration
    readAheadCacheSizeThresholdRate readAheadMessageCountThreshold readAheadMessageSizeThreshold
    readUnCommitted realTimeNotifyConsumerChange realTimePersistRocksDBConfig recheckReputOffsetFromCq
    recordGetMessageResult recoverConcurrently recoverThreadPoolNums replyThreadPoolQueueCapacity
    reviveAckWaitMs reviveMaxSlow reviveScanTime rocksdbCompressionType rocksdbFlushWalFrequency
    rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable
    sendMessageThreadPoolNums skipWhenCKRePutReachMaxTimes
    spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum statRocksDBCQIntervalSec
    subscriptionExpiredTimeout syncBrokerMetadataPeriod
    syncControllerMetadataPeriod syncFromLastFile syncMasterFlushOffsetWhenStartup
    tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable
    tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval tieredStoreFileReservedTime
    tieredStoreGroupCommit tieredStoreGroupCommitCount tieredStoreGroupCommitSize
    tieredStoreGroupCommitTimeout tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum
    tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit timerColdDataCheckIntervalMs
    timerEnableCheckMetrics timerEnableRetryUntilSuccess timerGetMessageThreadNum
    timerInterceptDelayLevel timerMetricSmallThreshold timerProgressLogIntervalMs
    timerPutMessageThreadNum timerSkipUnknownError topicQueueLockNum transactionMetricFlushInterval
    transactionOpBatchInterval transactionOpMsgMaxSize transferMsgByHeap transientStorePoolEnable
    transientStorePoolSize travelCqFileNumWhenGetMessage updateNameServerAddrPeriod
    updateNamesrvAddrInterval useABSLock usePIDColdCtrStrategy userCacheExpiredSecond userCacheMaxNum
    userCacheRefreshSecond useReentrantLockWhenPutMessage validateSystemTopicWhenUpdateTopic
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable writeWithoutMmap
"""

_BOTH = frozenset((_NETTY + _CONTROLLER_AND_METRICS).split())
NAME_SERVER_HARMLESS: frozenset[str] = _BOTH | frozenset(_NAME_SERVER.split())
BROKER_HARMLESS: frozenset[str] = NAME_SERVER_HARMLESS | frozenset(_BROKER.split())

# Apache 3.x and 4.x wrote "maped"; the others are names that many files on the web give by mistake.
OLD_NAMES: Mapping[str, str] = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "mapedFileSizeConsumeQueueExt": "mappedFileSizeConsumeQueueExt",
    "serverLoadBalancerEnabled": "serverLoadBalancerEnable",
    "enableAcl": "aclEnable",
    "haSlaveFallbehindMax": "haMaxGapNotInSync",
}

# Keys of Apache 3.x and 4.0 to 4.2 that no later version has, and why a file may still hold them.
RETIRED: Mapping[str, str] = {
    "checkTransactionMessageEnable": "brokers always ask producers about open transactions",
    "checkTransactionMessageAtleastInterval": "transactionTimeOut says when a producer is asked first",
    "checkTransactionMessageTimerInterval": "transactionCheckInterval says how often producers are asked",
    "tranStateTableStorePath": "transactions are kept in topics of the store",
    "tranStateTableMapedFileSize": "transactions are kept in topics of the store",
    "tranRedoLogStorePath": "transactions are kept in topics of the store",
    "tranRedoLogMapedFileSize": "transactions are kept in topics of the store",
}
