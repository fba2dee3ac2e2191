package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Each of two broadcasting consumers gets everything; one that starts again goes on where it had stopped. */
public final class Broadcasting implements Scenario {
    private static final int BEFORE = 100;
    private static final int AFTER = 60;
    private static final int QUEUES = 4;

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        Deliveries always = new Deliveries();
        Deliveries early = new Deliveries();
        Deliveries late = new Deliveries();
        DefaultMQPushConsumer staying = consumer(place, "staying", always);
        DefaultMQPushConsumer leaving = consumer(place, "leaving", early);
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, BEFORE + AFTER);
        for (Message message : messages.subList(0, BEFORE)) {
            producer.send(message);
        }
        boolean complete = early.await(BEFORE);
        leaving.shutdown();
        for (Message message : messages.subList(BEFORE, BEFORE + AFTER)) {
            producer.send(message);
        }
        DefaultMQPushConsumer again = consumer(place, "leaving", late);
        complete &= late.await(AFTER) & always.await(BEFORE + AFTER);
        again.shutdown();
        staying.shutdown();
        producer.shutdown();
        Map<String, Object> report = new HashMap<>();
        report.put("complete", complete);
        report.put("before", Place.sums(messages.subList(0, BEFORE)));
        report.put("after", Place.sums(messages.subList(BEFORE, BEFORE + AFTER)));
        report.put("always", always.report());
        report.put("early", early.report());
        report.put("late", late.report());
        return report;
    }

    private static DefaultMQPushConsumer consumer(Place place, String name, Deliveries deliveries) throws Exception {
        DefaultMQPushConsumer consumer = place.push(name);
        // The type of the model moved between 4.9 and 5: its name is not written here.
        consumer.setMessageModel(
            Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        consumer.subscribe(place.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(deliveries::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        place.awaitShared(QUEUES, consumer);
        return consumer;
    }
}
