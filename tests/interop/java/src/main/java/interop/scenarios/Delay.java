package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Messages of delay levels 0 to 3, in turn. */
public final class Delay implements Scenario {
    private static final int COUNT = 60;
    private static final int LEVELS = 4;

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
        List<Message> messages = place.messages(0, COUNT);
        Map<String, Long> sentMs = new HashMap<>();
        for (Message message : messages) {
            message.setDelayTimeLevel(Place.index(message) % LEVELS);
            sentMs.put(message.getKeys(), System.currentTimeMillis());
            producer.send(message);
        }
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.await(COUNT));
        consumer.shutdown();
        producer.shutdown();
        report.put("levels", LEVELS);
        report.put("sent", Place.sums(messages));
        report.put("sentMs", sentMs);
        report.put("deliveries", deliveries.report());
        return report;
    }
}
