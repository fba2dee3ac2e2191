package interop.scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
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
 */
public final class Transactions implements Scenario {
    private static final int COUNT = 50;
    private static final int KINDS = 5;

    /** A check that comes so soon after an answer was asked before that answer was there. */
    private static final long CROSSING_NS = 1_000_000_000;

    private final Map<String, Integer> checks = new ConcurrentHashMap<>();
    private final Map<String, Integer> crossed = new ConcurrentHashMap<>(); // of the checks
    private final Map<String, Long> answeredNs = new ConcurrentHashMap<>();
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
        producer.start();
        List<Message> messages = place.messages(0, COUNT);
        // The official broker forgets the flag of a message whose check it repeats.
        messages.stream().filter(message -> Place.index(message) % KINDS > 1).forEach(message -> message.setFlag(0));
        Map<String, String> states = new HashMap<>();
        for (Message message : messages) {
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            states.put(message.getKeys(), result.getSendStatus() + " " + result.getLocalTransactionState());
        }
        Map<String, Object> report = new HashMap<>();
        report.put("complete", deliveries.awaitKeys(COUNT * 3 / KINDS));
        Place.until("rolled back by checks", () -> messages.stream()
            .filter(message -> Place.index(message) % KINDS == 3)
            .allMatch(message -> checks.containsKey(message.getKeys())) ? true : null);
        consumer.shutdown();
        producer.shutdown();
        report.put("kinds", KINDS);
        report.put("sent", Place.sums(messages));
        report.put("states", states);
        report.put("checks", checks);
        report.put("crossed", crossed);
        report.put("checkedSums", checkedSums);
        report.put("deliveries", deliveries.report());
        return report;
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            answeredNs.put(message.getKeys(), System.nanoTime());
            return switch (Place.index(message) % KINDS) {
                case 0 -> LocalTransactionState.COMMIT_MESSAGE;
                case 1 -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checkedSums.putAll(Place.sums(List.of(message)));
            int times = checks.merge(message.getKeys(), 1, Integer::sum);
            long nowNs = System.nanoTime();
            Long before = answeredNs.put(message.getKeys(), nowNs);
            if (before != null && nowNs - before < CROSSING_NS) {
                crossed.merge(message.getKeys(), 1, Integer::sum);
            }
            return switch (Place.index(message) % KINDS) {
                case 1, 3 -> LocalTransactionState.ROLLBACK_MESSAGE;
                case 4 -> times == 1 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
                default -> LocalTransactionState.COMMIT_MESSAGE;
            };
        }
    }
}
