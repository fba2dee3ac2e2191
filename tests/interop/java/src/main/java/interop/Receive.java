package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQPushConsumer and DefaultLitePullConsumer with a filter: --expect N distinct messages, then report. */
public final class Receive {
    private Receive() {
    }

    public static Map<String, Object> push(Arguments arguments) throws Exception {
        Traffic.Ledger ledger = new Traffic.Ledger();
        int expect = arguments.number("expect", 1);
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.text("group"));
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(2_000); // a first heartbeat that failed on a busy machine is soon repeated
        consumer.setPollNameServerInterval(arguments.number("poll", 30_000));
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // the last offsets are kept before it ends
        consumer.subscribe(arguments.text("topic"), arguments.text("filter", "*"));
        Map<MessageQueue, Long> ends = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                ledger.add(message);
                ends.merge(context.getMessageQueue(), message.getQueueOffset() + 1, Math::max);
            }
            if (ledger.distinct() >= expect) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().isEmpty()) {
            consumer.getDefaultMQPushConsumerImpl().doRebalance();
            TimeUnit.MILLISECONDS.sleep(20);
        }
        System.out.println("READY");
        boolean complete = all.await(arguments.number("seconds", 60), TimeUnit.SECONDS);
        if (complete) {
            commit(consumer, ends);
        }
        consumer.shutdown();
        Map<String, Object> report = ledger.report();
        report.put("complete", complete);
        return report;
    }

    /**
     * What was consumed, up to the {@code ends}, is committed when this returns. At its shutdown the client sends its
     * offsets without waiting for an answer, and leaves; a busy broker may give a queue to the next member before it has
     * taken the offset in. The client's own table knows an offset only a moment after the listener has returned and the
     * messages have been counted off.
     */
    private static void commit(DefaultMQPushConsumer consumer, Map<MessageQueue, Long> ends) throws Exception {
        OffsetStore offsets = consumer.getDefaultMQPushConsumerImpl().getOffsetStore();
        Map<MessageQueue, ProcessQueue> own =
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        for (Map.Entry<MessageQueue, Long> end : ends.entrySet()) {
            MessageQueue queue = end.getKey();
            while (own.containsKey(queue)
                && offsets.readOffset(queue, ReadOffsetType.READ_FROM_MEMORY) < end.getValue()) {
                TimeUnit.MILLISECONDS.sleep(5);
            }
            if (own.containsKey(queue)) {
                offsets.updateConsumeOffsetToBroker(queue, end.getValue(), false);
            }
        }
    }

    public static Map<String, Object> lite(Arguments arguments) throws Exception {
        Traffic.Ledger ledger = new Traffic.Ledger();
        int expect = arguments.number("expect", 1);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments.text("group"));
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(2_000); // a first heartbeat that failed on a busy machine is soon repeated
        consumer.subscribe(arguments.text("topic"), arguments.text("filter", "*"));
        consumer.setAutoCommit(false);
        consumer.start();
        System.out.println("READY");
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(arguments.number("seconds", 60));
        while (ledger.distinct() < expect && System.nanoTime() < end) {
            for (MessageExt message : consumer.poll(500)) {
                ledger.add(message);
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        Map<String, Object> report = ledger.report();
        report.put("complete", ledger.distinct() >= expect);
        return report;
    }
}
