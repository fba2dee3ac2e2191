package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** An orderly consumer that may fail twice on a message: then it is a dead letter, and those behind it go on. */
public final class OrderlyRetry implements Scenario {
    private static final int COUNT = 20;
    private static final int BAD_EACH = 5;
    private static final int RECONSUME_MAX = 2;
    private static final int BAD = COUNT / BAD_EACH;

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        Deliveries deliveries = new Deliveries();
        DefaultMQPushConsumer consumer = place.push("consumer");
        consumer.setMaxReconsumeTimes(RECONSUME_MAX);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.subscribe(place.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            deliveries.add(messages.get(0));
            return Place.index(messages.get(0)) % BAD_EACH == 1 ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, COUNT);
        for (Message message : messages) {
            producer.send(message, (queues, all, argument) -> queues.get(0), null);
        }
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.await(COUNT - BAD + BAD * (1 + RECONSUME_MAX)));
        report.put("dead", Retry.deadLetters(place, place.topic, BAD));
        consumer.shutdown();
        producer.shutdown();
        report.put("sent", Place.sums(messages));
        report.put("deliveries", deliveries.report());
        return report;
    }
}
