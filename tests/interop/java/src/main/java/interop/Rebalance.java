package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * DefaultMQPushConsumers of one group that join and leave while a DefaultMQProducer sends: --orderly true|false
 * --steps "+ + - + - -", one each --pause milliseconds; + is a consumer that joins, - the oldest one that leaves.
 *
 * <p>Each message carries its number within its queue. Reported are messages sent, seen, seen again, skipped (a number
 * was seen before the one below it) and queues that two listeners worked on at the same time.
 */
public final class Rebalance {
    private static final int EACH = 5; // messages to each queue between two pauses of the producer
    private static final int PAUSE_MS = 20;
    private static final int SEED_CONSUMERS = 2;

    private final Arguments arguments;
    private final int queues;
    private final int[] sent;
    private final int[] seen; // one above the highest number seen of each queue
    private final Map<String, Integer> times = new TreeMap<>(); // queue-number -> how often it was seen
    private final AtomicInteger[] busy;
    private final AtomicInteger overlaps = new AtomicInteger();
    private final Deque<DefaultMQPushConsumer> consumers = new ArrayDeque<>();
    private int skipped;
    private volatile boolean sending = true;

    private Rebalance(Arguments arguments) {
        this.arguments = arguments;
        queues = arguments.number("queues", 8);
        sent = new int[queues];
        seen = new int[queues];
        busy = new AtomicInteger[queues];
        for (int queue = 0; queue < queues; queue++) {
            busy[queue] = new AtomicInteger();
        }
    }

    public static void main(String[] words) throws Exception {
        String[] all = new String[words.length + 1];
        System.arraycopy(words, 0, all, 1, words.length);
        Map<String, Object> report = new Rebalance(new Arguments(all)).run();
        System.out.println("RESULT " + JSON.toJSONString(report, SerializerFeature.MapSortField));
        System.out.flush();
        Runtime.getRuntime().halt(0); // official clients leave threads behind that would keep the JVM
    }

    private Map<String, Object> run() throws Exception {
        for (int i = 0; i < SEED_CONSUMERS; i++) {
            join();
        }
        Thread producer = new Thread(this::send, "producer");
        producer.start();
        for (String step : arguments.text("steps").split(" ")) {
            TimeUnit.MILLISECONDS.sleep(arguments.number("pause", 2000));
            if (step.equals("+")) {
                join();
            } else {
                consumers.removeFirst().shutdown();
            }
        }
        sending = false;
        producer.join();
        int total = 0;
        for (int count : sent) {
            total += count;
        }
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(arguments.number("seconds", 30));
        while (distinct() < total && System.nanoTime() < end) {
            TimeUnit.MILLISECONDS.sleep(20);
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        return report(total);
    }

    private synchronized Map<String, Object> report(int total) {
        int again = 0;
        for (int count : times.values()) {
            again += count - 1;
        }
        Map<String, Object> report = new TreeMap<>();
        report.put("sent", total);
        report.put("seen", times.size());
        report.put("again", again);
        report.put("skipped", skipped);
        report.put("overlaps", overlaps.get());
        return report;
    }

    private synchronized int distinct() {
        return times.size();
    }

    private void join() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.text("group"));
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000); // what is being worked on is committed when it leaves
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(arguments.text("topic"), "*");
        if (arguments.text("orderly").equals("true")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                see(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                see(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        consumers.addLast(consumer);
    }

    private void see(List<MessageExt> messages) {
        int queue = messages.get(0).getQueueId();
        if (busy[queue].incrementAndGet() > 1) {
            overlaps.incrementAndGet();
        }
        for (MessageExt message : messages) {
            see(queue, Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8)));
        }
        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1)); // some work, so that queues change hands within it
        busy[queue].decrementAndGet();
    }

    private synchronized void see(int queue, int number) {
        times.merge(queue + "-" + number, 1, Integer::sum);
        if (number > seen[queue]) {
            skipped++;
        }
        seen[queue] = Math.max(seen[queue], number + 1);
    }

    private void send() {
        DefaultMQProducer producer = new DefaultMQProducer("rebalance-producer");
        producer.setNamesrvAddr(arguments.text("namesrv"));
        try {
            producer.start();
            List<MessageQueue> targets = new ArrayList<>(producer.fetchPublishMessageQueues(arguments.text("topic")));
            while (sending) {
                for (MessageQueue target : targets) {
                    for (int i = 0; i < EACH; i++) {
                        byte[] body = Integer.toString(sent[target.getQueueId()]).getBytes(StandardCharsets.UTF_8);
                        producer.send(new Message(arguments.text("topic"), body), target);
                        sent[target.getQueueId()]++;
                    }
                }
                TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        } finally {
            producer.shutdown();
        }
    }
}
