package interop.scenarios;

import interop.Traffic;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.message.MessageExt;

/** Every delivery of a message, in the order in which they came. */
public final class Deliveries {
    private final List<Object> all = new ArrayList<>();
    private final Set<String> keys = new HashSet<>();

    public void add(MessageExt message) {
        add(message, message.getTopic());
    }

    /** {@code topic}: the topic that the sum is made with, where the message's own is not that of its sender. */
    public synchronized void add(MessageExt message, String topic) {
        Map<String, Object> one = new HashMap<>();
        one.put("key", message.getKeys());
        one.put("index", Place.index(message));
        one.put("sum", Long.toUnsignedString(Traffic.sum(message, topic)));
        one.put("topic", message.getTopic());
        one.put("queueId", message.getQueueId());
        one.put("queueOffset", message.getQueueOffset());
        one.put("reconsumeTimes", message.getReconsumeTimes());
        one.put("sysFlag", message.getSysFlag());
        one.put("msgId", message.getMsgId());
        one.put("bornMs", message.getBornTimestamp());
        one.put("atMs", System.currentTimeMillis());
        one.put("properties", new HashMap<>(message.getProperties()));
        all.add(one);
        keys.add(message.getKeys());
        notifyAll();
    }

    /** Wait for this many deliveries; whether they came. */
    public boolean await(int count) throws InterruptedException {
        return await(count, all);
    }

    /** Wait for this many messages, however often each came; whether they did. */
    public boolean awaitKeys(int count) throws InterruptedException {
        return await(count, keys);
    }

    private synchronized boolean await(int count, Collection<?> arrived) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Place.WAIT_S);
        while (arrived.size() < count) {
            long leftMs = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            if (leftMs <= 0) {
                return false;
            }
            wait(leftMs);
        }
        return true;
    }

    public synchronized int count() {
        return all.size();
    }

    public synchronized boolean has(String key) {
        return keys.contains(key);
    }

    public synchronized List<Object> report() {
        return new ArrayList<>(all);
    }
}
