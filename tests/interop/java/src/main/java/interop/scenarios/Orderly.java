package interop.scenarios;

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Two orderly consumers of one group share four queues; six lanes of messages go to queues by lane.
 *
 * <p>Each fiftieth message is refused once: its queue pauses, and it comes again before those after it.
 */
public final class Orderly implements Scenario {
    private static final int COUNT = 480;
    private static final int LANES = 6;
    private static final int QUEUES = 4;
    private static final int REFUSE_EACH = 50;

    private final Deliveries deliveries = new Deliveries();
    private final Set<Integer> refused = ConcurrentHashMap.newKeySet();
    private final Map<Integer, AtomicInteger> busy = new ConcurrentHashMap<>();
    private final AtomicInteger overlaps = new AtomicInteger();
    private final Map<String, Set<Integer>> queuesOf = new ConcurrentHashMap<>();

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        DefaultMQPushConsumer first = consumer(place, "first");
        DefaultMQPushConsumer second = consumer(place, "second");
        place.awaitShared(QUEUES, first, second);
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, COUNT);
        for (Message message : messages) {
            producer.send(message, (queues, all, lane) -> queues.get((int) lane % queues.size()),
                Place.index(message) % LANES);
        }
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.await(COUNT));
        first.shutdown();
        second.shutdown();
        producer.shutdown();
        report.put("lanes", LANES);
        report.put("sent", Place.sums(messages));
        report.put("deliveries", deliveries.report());
        report.put("refused", refused);
        report.put("overlaps", overlaps.get());
        report.put("queuesOf", queuesOf);
        return report;
    }

    private DefaultMQPushConsumer consumer(Place place, String name) throws Exception {
        DefaultMQPushConsumer consumer = place.push(name);
        consumer.subscribe(place.topic, "*");
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            int queue = context.getMessageQueue().getQueueId();
            queuesOf.computeIfAbsent(name, any -> new HashSet<>()).add(queue);
            AtomicInteger inside = busy.computeIfAbsent(queue, any -> new AtomicInteger());
            if (inside.incrementAndGet() > 1) {
                overlaps.incrementAndGet();
            }
            try {
                int index = Place.index(messages.get(0));
                if (index % REFUSE_EACH == 0 && refused.add(index)) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                messages.forEach(deliveries::add);
                return ConsumeOrderlyStatus.SUCCESS;
            } finally {
                inside.decrementAndGet();
            }
        });
        consumer.start();
        return consumer;
    }
}
