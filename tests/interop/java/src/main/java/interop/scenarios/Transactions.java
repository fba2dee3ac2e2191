package interop.scenarios;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transaction messages, by index modulo 5: committed; rolled back; unknown, the check commits; unknown, the check
 * rolls back; unknown, the first check does not know either, the second commits.
 *
 * Two more are marks: one is sent when all have been answered that are not asked twice, one when all have. Nobody
 * knows about these until their third check: by then the broker has had rounds enough to ask again about what it was
 * told. It asks about a copy that it has stored for that, whose number in the queue of half messages the check has: so
 * no clock says whether an answer, behind which something was sent, came before or after a question.
 */
public final class Transactions implements Scenario {
    private static final int COUNT = 50;
    private static final int KINDS = 5;
    private static final Set<Integer> KINDS_ASKED_ONCE = Set.of(2, 3);
    private static final int CHECKS_OF_MARKS = 3;

    private final Map<String, List<Long>> checks = new ConcurrentHashMap<>(); // numbers of the copies
    private final Map<String, String> checkedSums = new ConcurrentHashMap<>();

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
        TransactionMQProducer producer = new TransactionMQProducer(place.topic + "-producer");
        place.prepare(producer);
        producer.setTransactionListener(new Listener());
        ExecutorService checker = Executors.newSingleThreadExecutor(); // answers a check before it looks at the next
        producer.setExecutorService(checker);
        producer.start();
        List<Message> messages = place.messages(0, COUNT);
        // The official broker forgets the flag of a message whose check it repeats.
        messages.stream().filter(message -> Place.index(message) % KINDS > 1).forEach(message -> message.setFlag(0));
        Map<String, String> states = new HashMap<>();
        List<Long> places = new ArrayList<>(); // in the queue of half messages
        for (Message message : messages) {
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            places.add(result.getQueueOffset());
            states.put(message.getKeys(), result.getSendStatus() + " " + result.getLocalTransactionState());
        }
        Place.until("asked for", () -> messages.stream()
            .filter(message -> KINDS_ASKED_ONCE.contains(Place.index(message) % KINDS))
            .allMatch(message -> checks.containsKey(message.getKeys())) ? true : null);
        List<Message> marks = place.messages(COUNT, COUNT + 2);
        places.add(sendMark(producer, marks.get(0)));
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.awaitKeys(COUNT * 3 / KINDS));
        places.add(sendMark(producer, marks.get(1)));
        List<String> keys = marks.stream().map(Message::getKeys).toList();
        Place.until("marks are asked for", () -> keys.stream().allMatch(key ->
            checks.getOrDefault(key, List.of()).size() >= CHECKS_OF_MARKS) ? true : null);
        consumer.shutdown();
        producer.shutdown();
        checker.shutdown();
        report.put("kinds", KINDS);
        report.put("sent", Place.sums(messages));
        report.put("states", states);
        report.put("places", places);
        keys.forEach(checks::remove);
        keys.forEach(checkedSums::remove);
        report.put("checks", checks);
        report.put("checkedSums", checkedSums);
        report.put("deliveries", deliveries.report());
        return report;
    }

    /** Send it behind the answers to all checks that were begun; its number in the queue of half messages. */
    private long sendMark(TransactionMQProducer producer, Message mark) throws Exception {
        producer.getExecutorService().submit(() -> { }).get();
        return producer.sendMessageInTransaction(mark, null).getQueueOffset();
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            if (Place.index(message) >= COUNT) {
                return LocalTransactionState.UNKNOW;
            }
            return switch (Place.index(message) % KINDS) {
                case 0 -> LocalTransactionState.COMMIT_MESSAGE;
                case 1 -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checkedSums.putAll(Place.sums(List.of(message)));
            List<Long> asked = checks.computeIfAbsent(message.getKeys(), key -> new CopyOnWriteArrayList<>());
            asked.add(message.getQueueOffset());
            if (Place.index(message) >= COUNT) {
                return asked.size() < CHECKS_OF_MARKS
                    ? LocalTransactionState.UNKNOW : LocalTransactionState.ROLLBACK_MESSAGE;
            }
            return switch (Place.index(message) % KINDS) {
                case 1, 3 -> LocalTransactionState.ROLLBACK_MESSAGE;
                case 4 -> asked.size() == 1 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
                default -> LocalTransactionState.COMMIT_MESSAGE;
            };
        }
    }
}
