package interop.scenarios.five;

import interop.scenarios.Deliveries;
import interop.scenarios.Place;
import interop.scenarios.Scenario;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Messages with a time of their own, by index modulo 4: deliver at; delay in ms; delay in seconds; deliver at, but
 * recalled. The last one is due after all the recalled ones.
 */
public final class Timed implements Scenario {
    private static final int COUNT = 40;
    private static final int KINDS = 4;
    private static final int RECALLED_MS = 4_000;
    private static final int LAST_MS = 7_000;

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        Deliveries deliveries = new Deliveries();
        DefaultMQPushConsumer consumer = place.push("consumer");
        consumer.subscribe(place.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(deliveries::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        place.awaitShared(4, consumer);
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, COUNT + 1);
        Map<String, Long> dueMs = new HashMap<>();
        Map<String, String> recalled = new HashMap<>();
        for (Message message : messages) {
            long nowMs = System.currentTimeMillis();
            int i = Place.index(message);
            long delayMs = i == COUNT ? LAST_MS : i % KINDS == 3 ? RECALLED_MS : delay(i);
            switch (i == COUNT ? 0 : i % KINDS) {
                case 1 -> message.setDelayTimeMs(delayMs);
                case 2 -> message.setDelayTimeSec(delayMs / 1000);
                default -> message.setDeliverTimeMs(nowMs + delayMs);
            }
            dueMs.put(message.getKeys(), nowMs + delayMs);
            SendResult result = producer.send(message);
            if (i < COUNT && i % KINDS == 3) {
                recalled.put(message.getKeys(), producer.recallMessage(place.topic, result.getRecallHandle()));
            }
        }
        Map<String, Object> report = new HashMap<>();
        Place.until("the last message is delivered",
            () -> deliveries.has(messages.get(COUNT).getKeys()) ? true : null);
        consumer.shutdown();
        producer.shutdown();
        report.put("sent", Place.sums(messages));
        report.put("dueMs", dueMs);
        report.put("recalled", recalled);
        report.put("deliveries", deliveries.report());
        return report;
    }

    /** 1, 2 or 3 seconds, and for those that can be told in ms something between. */
    private static long delay(int i) {
        return i % KINDS == 2 ? 1_000L * (1 + i % 3) : 1_000L + 137L * (i % 10);
    }
}
