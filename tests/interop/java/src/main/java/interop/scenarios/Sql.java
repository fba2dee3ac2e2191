package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Consumers with SQL filters over properties: {@code n}, the index; {@code color}, absent from each fifth message.
 *
 * <p>The last message passes every filter, so that a consumer has seen all when it has seen that one.
 */
public final class Sql implements Scenario {
    private static final int COUNT = 200;
    private static final List<String> COLORS = List.of("red", "green", "blue");
    private static final String LAST = " OR n = " + COUNT;

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        Deliveries pushed = new Deliveries();
        DefaultMQPushConsumer consumer = consumer(place, pushed,
            "(n BETWEEN 10 AND 99 AND color IN ('red', 'blue') AND TAGS = 'TagA')" + LAST);
        consumer.start();
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, COUNT + 1);
        for (Message message : messages) {
            int i = Place.index(message);
            message.putUserProperty("n", Integer.toString(i));
            if (i % 5 != 0) {
                message.putUserProperty("color", COLORS.get(i % COLORS.size()));
            }
            producer.send(message, (queues, all, argument) -> queues.get(0), null);
        }
        String last = messages.get(COUNT).getKeys();
        Map<String, Object> report = new HashMap<>();
        Place.until("the last message is pushed", () -> pushed.has(last) ? true : null);
        report.put("sent", Place.sums(messages));
        report.put("pushed", pushed.report());
        report.put("polled", poll(place, "(color IS NULL AND NOT (n < 50)) OR color = 'green' AND n > 150.5" + LAST,
            last));
        report.put("refusal", refusal(place));
        consumer.shutdown();
        producer.shutdown();
        return report;
    }

    private static DefaultMQPushConsumer consumer(Place place, Deliveries deliveries, String expression)
        throws Exception {
        DefaultMQPushConsumer consumer = place.push("consumer");
        consumer.subscribe(place.topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(deliveries::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static List<Object> poll(Place place, String expression, String last) throws Exception {
        Deliveries polled = new Deliveries();
        DefaultLitePullConsumer consumer = place.lite(place.topic + "-lite", "lite");
        consumer.subscribe(place.topic, MessageSelector.bySql(expression));
        consumer.start();
        long end = System.nanoTime() + Place.WAIT_S * 1_000_000_000L;
        while (!polled.has(last) && System.nanoTime() < end) {
            consumer.poll(200).forEach(polled::add);
        }
        consumer.shutdown();
        return polled.report();
    }

    /** What a push consumer is told at its start, when its expression is no SQL92. */
    private static String refusal(Place place) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(place.topic + "-refused");
        place.prepare(consumer, "refused");
        consumer.subscribe(place.topic, MessageSelector.bySql("n >> 3"));
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            consumer.start();
            return "";
        } catch (Exception e) {
            return e + " " + e.getCause();
        } finally {
            consumer.shutdown();
        }
    }
}
