package interop.scenarios;

import interop.Traffic;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Where one scenario takes place: its topic, which is also the first part of its groups, and its clients. */
public final class Place {
    public static final int WAIT_S = 100;
    private static final int ROUTE_MS = 1_000; // so that a topic made on demand is known soon
    private static final int HEARTBEAT_MS = 2_000; // a first heartbeat that failed on a busy machine is soon repeated

    public final String namesrv;
    public final String topic;

    Place(String namesrv, String topic) {
        this.namesrv = namesrv;
        this.topic = topic;
    }

    /** A started producer. */
    public DefaultMQProducer producer() throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(topic + "-producer");
        prepare(producer);
        producer.start();
        return producer;
    }

    public void prepare(DefaultMQProducer producer) {
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(topic + "-producer");
        producer.setSendMsgTimeout(10_000);
    }

    /** A push consumer, not started and without a listener; {@code instance} tells several of one group apart. */
    public DefaultMQPushConsumer push(String instance) {
        return prepare(new DefaultMQPushConsumer(topic), instance);
    }

    public DefaultMQPushConsumer prepare(DefaultMQPushConsumer consumer, String instance) {
        consumer.setNamesrvAddr(namesrv);
        consumer.setPollNameServerInterval(ROUTE_MS);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setInstanceName(topic + "-" + instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        return consumer;
    }

    /** A lite pull consumer that commits only when told to, not started. */
    public DefaultLitePullConsumer lite(String group, String instance) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(topic + "-" + instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        return consumer;
    }

    /** Wait until the queues of the topic are shared out evenly among these consumers of one group. */
    public void awaitShared(int queues, DefaultMQPushConsumer... consumers) throws Exception {
        until("queues of " + topic + " are shared out", () -> {
            boolean even = true;
            for (DefaultMQPushConsumer consumer : consumers) {
                var balance = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
                consumer.getDefaultMQPushConsumerImpl().doRebalance();
                long own = balance.getProcessQueueTable().keySet().stream()
                    .filter(queue -> queue.getTopic().equals(topic)).count();
                even &= own == queues / consumers.length;
            }
            return even ? true : null;
        });
    }

    /** Messages first to last - 1 of the run that has the topic's name. */
    public List<Message> messages(int first, int last) {
        List<Message> made = new ArrayList<>();
        for (int i = first; i < last; i++) {
            made.add(Traffic.message(topic, topic, i, true));
        }
        return made;
    }

    /** The sums of messages by their keys. */
    public static Map<String, String> sums(Collection<? extends Message> messages) {
        Map<String, String> sums = new HashMap<>();
        for (Message message : messages) {
            sums.put(message.getKeys(), Long.toUnsignedString(Traffic.sum(message, message.getTopic())));
        }
        return sums;
    }

    public static int index(Message message) {
        return Integer.parseInt(message.getUserProperty("index"));
    }

    public static List<MessageQueue> sorted(Collection<MessageQueue> queues) {
        return queues.stream().sorted().toList();
    }

    /** Ask until the answer is neither null nor an exception; the exception, or a time-out, after WAIT_S. */
    public static <T> T until(String what, Callable<T> question) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (true) {
            try {
                T answer = question.call();
                if (answer != null) {
                    return answer;
                }
            } catch (Exception e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not within " + WAIT_S + " s: " + what);
            }
            TimeUnit.MILLISECONDS.sleep(100);
        }
    }
}
