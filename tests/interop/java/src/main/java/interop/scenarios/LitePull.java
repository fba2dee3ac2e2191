package interop.scenarios;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull consumers: one that subscribes and hands over to its successor, one that is assigned queues and seeks. */
public final class LitePull implements Scenario {
    private static final int COUNT = 200;
    private static final int HALF = 100;
    private static final int SEEK_TO = 20;
    private static final int MORE = 5;
    private static final int POLL_MS = 200;

    private final Map<String, Object> report = new HashMap<>();

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        DefaultMQProducer producer = place.producer();
        List<Message> messages = place.messages(0, COUNT);
        for (Message message : messages) {
            producer.send(message, (queues, all, i) -> queues.get((int) i % queues.size()), Place.index(message));
        }
        report.put("sent", Place.sums(messages));
        report.put("first", subscribe(place, "first", HALF));
        report.put("second", subscribe(place, "second", COUNT - HALF));
        assign(place, producer);
        producer.shutdown();
        return report;
    }

    /** Poll exactly {@code count} messages, commit and leave; the next member gets the others. */
    private static List<Object> subscribe(Place place, String name, int count) throws Exception {
        Deliveries deliveries = new Deliveries();
        DefaultLitePullConsumer consumer = place.lite(place.topic, name);
        consumer.setPullBatchSize(10);
        consumer.subscribe(place.topic, "*");
        consumer.start();
        long end = System.nanoTime() + Place.WAIT_S * 1_000_000_000L;
        while (deliveries.count() < count && System.nanoTime() < end) {
            consumer.poll(POLL_MS).forEach(deliveries::add);
        }
        consumer.commitSync();
        consumer.shutdown();
        return deliveries.report();
    }

    private void assign(Place place, DefaultMQProducer producer) throws Exception {
        DefaultLitePullConsumer consumer = place.lite(place.topic + "-assign", "assign");
        consumer.start();
        List<MessageQueue> queues = Place.sorted(
            Place.until("route of " + place.topic, () -> consumer.fetchMessageQueues(place.topic)));
        MessageQueue all = queues.get(0);
        MessageQueue tail = queues.get(1);
        int inQueue = COUNT / queues.size();
        consumer.assign(List.of(all, tail));
        // All is read before each seek: one that meets an arriving pull may skip what that brings.
        report.put("assigned", poll(consumer, 2 * inQueue));
        consumer.seekToBegin(all);
        consumer.seek(tail, SEEK_TO);
        report.put("sought", poll(consumer, inQueue + inQueue - SEEK_TO));

        consumer.pause(List.of(all));
        send(producer, place.messages(COUNT, COUNT + MORE), all);
        send(producer, place.messages(COUNT + MORE, COUNT + 2 * MORE), tail);
        consumer.resume(List.of(all)); // a pull that was held meanwhile may have brought some of them
        report.put("paused", poll(consumer, 2 * MORE));

        report.put("offsetOfBegin", consumer.offsetForTimestamp(tail, 0L));
        report.put("offsetOfEnd", consumer.offsetForTimestamp(tail, System.currentTimeMillis() + 3_600_000L));
        consumer.seekToEnd(tail);
        send(producer, place.messages(COUNT + 2 * MORE, COUNT + 3 * MORE), tail);
        report.put("fromEnd", poll(consumer, MORE));
        report.put("queues", List.of(all.getQueueId(), tail.getQueueId()));
        consumer.shutdown();
    }

    private static void send(DefaultMQProducer producer, List<Message> messages, MessageQueue queue)
        throws Exception {
        for (Message message : messages) {
            producer.send(message, queue);
        }
    }

    private static List<Object> poll(DefaultLitePullConsumer consumer, int count) {
        Deliveries deliveries = new Deliveries();
        long end = System.nanoTime() + Place.WAIT_S * 1_000_000_000L;
        while (deliveries.count() < count && System.nanoTime() < end) {
            List<MessageExt> polled = new ArrayList<>(consumer.poll(POLL_MS));
            polled.forEach(deliveries::add);
        }
        return deliveries.report();
    }
}
