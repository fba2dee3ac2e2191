package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * A consumer that may fail twice, by index modulo 4: takes the message; fails once; always fails; sends it to the dead
 * letters at once. Then the dead letters are read.
 */
public final class Retry implements Scenario {
    private static final int COUNT = 40;
    private static final int KINDS = 4;
    private static final int RECONSUME_MAX = 2;
    private static final int DELIVERIES = COUNT / KINDS * (1 + 2 + 3 + 1);

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        Deliveries deliveries = new Deliveries();
        DefaultMQPushConsumer consumer = place.push("consumer");
        consumer.setMaxReconsumeTimes(RECONSUME_MAX);
        consumer.subscribe(place.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            deliveries.add(messages.get(0));
            switch (Place.index(messages.get(0)) % KINDS) {
                case 0:
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case 1:
                    return messages.get(0).getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                        : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case 2:
                    throw new IllegalStateException("this message cannot be handled");
                default:
                    context.setDelayLevelWhenNextConsume(-1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        consumer.start();
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, COUNT);
        for (Message message : messages) {
            producer.send(message);
        }
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.await(DELIVERIES));
        report.put("dead", deadLetters(place, place.topic, COUNT / 2));
        consumer.shutdown();
        producer.shutdown();
        report.put("kinds", KINDS);
        report.put("sent", Place.sums(messages));
        report.put("deliveries", deliveries.report());
        return report;
    }

    /** The dead letters of a group, at least {@code count}, summed as messages of the topic they were sent to. */
    static List<Object> deadLetters(Place place, String group, int count) throws Exception {
        String topic = "%DLQ%" + group;
        Deliveries dead = new Deliveries();
        DefaultLitePullConsumer consumer = place.lite(place.topic + "-undertaker", "undertaker");
        consumer.start();
        consumer.assign(Place.until("route of " + topic, () -> {
            var queues = consumer.fetchMessageQueues(topic);
            return queues.isEmpty() ? null : queues;
        }));
        long end = System.nanoTime() + Place.WAIT_S * 1_000_000_000L;
        while (dead.count() < count && System.nanoTime() < end) {
            consumer.poll(200).forEach(message -> dead.add(message, place.topic));
        }
        consumer.shutdown();
        return dead.report();
    }
}
