package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Producer and consumer that trace what they do; the traces are in the trace topic when this ends. */
public final class Trace implements Scenario {
    private static final int COUNT = 10;
    private static final String TOPIC = "RMQ_SYS_TRACE_TOPIC";

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        Deliveries deliveries = new Deliveries();
        DefaultMQPushConsumer consumer =
            place.prepare(new DefaultMQPushConsumer(place.topic, true, null), "consumer");
        consumer.subscribe(place.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(deliveries::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(place.topic + "-producer", true, null);
        place.prepare(producer);
        producer.start();
        List<Message> messages = place.messages(0, COUNT);
        Map<String, String> ids = new HashMap<>();
        for (Message message : messages) {
            ids.put(message.getKeys(), producer.send(message).getMsgId());
        }
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.await(COUNT));
        for (String id : ids.values()) {
            Traces.await(producer, TOPIC, id, Set.of("Pub", "SubAfter"));
        }
        consumer.shutdown();
        producer.shutdown();
        report.put("sent", Place.sums(messages));
        report.put("ids", ids);
        report.put("deliveries", deliveries.report());
        return report;
    }
}
