package interop.scenarios.five;

import interop.Traffic;
import interop.scenarios.Deliveries;
import interop.scenarios.Place;
import interop.scenarios.Scenario;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;

/** Bodies compressed in each way that the client knows, and many small messages that it puts into batches itself. */
public final class Codecs implements Scenario {
    private static final int EACH = 20;
    private static final int SMALL = 200;

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
        Map<String, Object> byType = new HashMap<>();
        for (CompressionType type : CompressionType.values()) {
            byType.put(type.name(), compressed(place, type));
        }
        Map<String, Object> report = new HashMap<>();
        report.put("compressed", byType);
        report.put("batched", batched(place));
        report.put("complete", deliveries.await(EACH * byType.size() + SMALL));
        consumer.shutdown();
        report.put("deliveries", deliveries.report());
        return report;
    }

    private static Map<String, String> compressed(Place place, CompressionType type) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(place.topic + "-" + type);
        place.prepare(producer);
        producer.setInstanceName(place.topic + "-" + type);
        producer.setCompressType(type);
        producer.start();
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < EACH; i++) {
            messages.add(Traffic.message(place.topic, place.topic + "-" + type, i * Traffic.LARGE_EACH, true));
        }
        Map<String, String> sums = Place.sums(messages); // the client compresses the message that it is given
        for (Message message : messages) {
            producer.send(message);
        }
        producer.shutdown();
        return sums;
    }

    private static Map<String, String> batched(Place place) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(place.topic + "-batched");
        place.prepare(producer);
        producer.setInstanceName(place.topic + "-batched");
        producer.setAutoBatch(true);
        producer.start();
        List<Message> messages = place.messages(1, SMALL + 1);
        Map<String, String> sums = new HashMap<>();
        for (Message message : messages) {
            message.setKeys("batched"); // the client gives each message the keys of its whole batch
            sums.put(Integer.toString(Place.index(message)), Long.toUnsignedString(Traffic.sum(message, place.topic)));
        }
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<?>> sends = new ArrayList<>();
        for (Message message : messages) {
            sends.add(threads.submit(() -> producer.send(message)));
        }
        for (Future<?> send : sends) {
            send.get(Place.WAIT_S, TimeUnit.SECONDS);
        }
        threads.shutdown();
        producer.shutdown();
        return sums;
    }
}
