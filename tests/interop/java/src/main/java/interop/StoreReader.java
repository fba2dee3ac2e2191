package interop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The official store opens a folder and answers everything it can be asked: --store DIR, file sizes, --keys FILE
 * (lines {@code topic<TAB>key}).
 *
 * <p>The folder is changed as an opening store changes it; give a copy.
 */
final class StoreReader {
    private static final long WAIT_MS = 20_000;

    private final DefaultMessageStore store;
    private final Map<String, Object> report = new TreeMap<>();
    private final Traffic.Ledger ledger = new Traffic.Ledger();
    private long largestStoreTimestamp;

    private StoreReader(DefaultMessageStore store) {
        this.store = store;
    }

    static Map<String, Object> run(Arguments arguments) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(config(arguments), new BrokerStatsManager(broker),
            (topic, queue, offset, tags, time, bits, properties) -> { }, broker, new ConcurrentHashMap<>());
        StoreReader reader = new StoreReader(store);
        reader.report.put("loaded", store.load());
        store.start();
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (store.dispatchBehindBytes() > 0 && System.currentTimeMillis() < deadline) {
            TimeUnit.MILLISECONDS.sleep(10);
        }
        reader.report.put("behind", store.dispatchBehindBytes());
        reader.report.put("minPhysicalOffset", store.getMinPhyOffset());
        reader.report.put("maxPhysicalOffset", store.getMaxPhyOffset());
        reader.records();
        reader.queues();
        reader.queries(arguments.text("keys", ""));
        reader.report.put("sums", reader.ledger.report());
        return reader.report;
    }

    private static MessageStoreConfig config(Arguments arguments) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(arguments.text("store"));
        config.setStorePathCommitLog(arguments.text("store") + "/commitlog");
        config.setMappedFileSizeCommitLog(arguments.number("mappedFileSizeCommitLog", 1 << 30));
        config.setMappedFileSizeConsumeQueue(arguments.number("mappedFileSizeConsumeQueue", 6_000_000));
        config.setMaxHashSlotNum(arguments.number("maxHashSlotNum", 5_000_000));
        config.setMaxIndexNum(arguments.number("maxIndexNum", 20_000_000));
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        config.setFileReservedTime(1_000_000);
        config.setDiskMaxUsedSpaceRatio(99);
        return config;
    }

    private void records() throws Exception {
        List<Object> records = new ArrayList<>();
        List<Long> bad = new ArrayList<>();
        long offset = store.getMinPhyOffset();
        long end = store.getMaxPhyOffset();
        while (offset < end) {
            SelectMappedBufferResult file = store.getCommitLogData(offset);
            ByteBuffer bytes = file.getByteBuffer();
            int size = bytes.getInt(0);
            if (size > 0 && bytes.getInt(4) == CommitLog.BLANK_MAGIC_CODE) {
                records.add(List.of(offset, size, "blank"));
            } else if (size > 0 && size <= bytes.remaining()) {
                byte[] record = new byte[size];
                bytes.get(0, record);
                record(offset, record, records, bad);
            } else {
                bad.add(offset);
                size = Math.toIntExact(end - offset);
            }
            file.release();
            offset += size;
        }
        report.put("records", records);
        report.put("bad", bad);
        report.put("largestStoreTimestamp", largestStoreTimestamp);
    }

    private void record(long offset, byte[] record, List<Object> records, List<Long> bad) throws Exception {
        DispatchRequest read = store.getCommitLog()
            .checkMessageAndReturnSize(ByteBuffer.wrap(record), true, false, true);
        if (!read.isSuccess()) {
            bad.add(offset);
        }
        largestStoreTimestamp = Math.max(largestStoreTimestamp, read.getStoreTimestamp());
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(record);
        records.add(List.of(offset, record.length, HexFormat.of().formatHex(digest, 0, 8)));
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, true);
        if (message.getUserProperty("index") != null) {
            ledger.add(message);
        }
    }

    private void queues() throws Exception {
        Map<String, Object> queues = new TreeMap<>();
        for (var topic : store.getConsumeQueueTable().entrySet()) {
            for (var queue : topic.getValue().entrySet()) {
                queues.put(topic.getKey() + "\t" + queue.getKey(),
                    queue(topic.getKey(), queue.getKey(), queue.getValue()));
            }
        }
        report.put("queues", queues);
    }

    private Map<String, Object> queue(String topic, int id, ConsumeQueueInterface queue)
        throws Exception {
        List<Object> entries = new ArrayList<>();
        long min = store.getMinOffsetInQueue(topic, id);
        long max = store.getMaxOffsetInQueue(topic, id);
        if (max > min) {
            ReferredIterator<CqUnit> units = queue.iterateFrom(min);
            while (units != null && units.hasNext()) {
                CqUnit unit = units.next();
                entries.add(List.of(unit.getPos(), unit.getSize(), unit.getTagsCode()));
            }
        }
        Map<String, Object> found = new TreeMap<>();
        found.put("min", min);
        found.put("max", max);
        found.put("entries", entries);
        GetMessageResult got = store.getMessage("interop-reader", topic, id, min, 32, null);
        found.put("get", List.of(got.getStatus().name(), got.getNextBeginOffset(), got.getMessageCount(),
            got.getBufferTotalSize()));
        got.release();
        found.put("atStart", store.getOffsetInQueueByTime(topic, id, 0));
        found.put("atEnd", store.getOffsetInQueueByTime(topic, id, largestStoreTimestamp + 1));
        found.put("earliest", store.getEarliestMessageTime(topic, id));
        return found;
    }

    private void queries(String file) throws Exception {
        Map<String, Object> answers = new TreeMap<>();
        List<String> lines = file.isEmpty() ? List.of() : Files.readAllLines(Path.of(file), StandardCharsets.UTF_8);
        for (String line : lines) {
            String[] parts = line.split("\t", 2);
            QueryMessageResult found = store.queryMessage(parts[0], parts[1], 32, 0, Long.MAX_VALUE);
            List<Object> messages = new ArrayList<>();
            for (ByteBuffer bytes : found.getMessageBufferList()) {
                messages.add(List.of(bytes.getLong(28), bytes.getInt(0)));
            }
            found.release();
            answers.put(line, messages);
        }
        report.put("queries", answers);
    }
}
