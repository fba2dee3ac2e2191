package interop;

import interop.scenarios.Traces;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Delayed messages by the official producer, and an official consumer that is never content. */
public final class Delay {
    private Delay() {
    }

    /**
     * Sends one message per word of --delays: {@code level:3}, {@code sec:2}, {@code ms:1500}, {@code in:1500} (deliver
     * at now + 1500 ms). The body is the word's number. With --trace, all of it is traced into that topic.
     */
    public static Map<String, Object> send(Arguments arguments) throws Exception {
        String trace = arguments.text("trace", "");
        DefaultMQProducer producer = trace.isEmpty()
            ? new DefaultMQProducer("delay-producer")
            : new DefaultMQProducer("delay-producer", true, trace);
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        List<Map<String, Object>> sent = new ArrayList<>();
        String recall = arguments.text("recall", "");
        for (String word : arguments.text("delays").split(",")) {
            String[] parts = word.split(":");
            long value = Long.parseLong(parts[1]);
            byte[] body = Integer.toString(sent.size()).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(arguments.text("topic"), "TagD", "key-" + sent.size(), body);
            long now = System.currentTimeMillis();
            switch (parts[0]) {
                case "level" -> message.setDelayTimeLevel((int) value);
                case "sec" -> message.setDelayTimeSec(value);
                case "ms" -> message.setDelayTimeMs(value);
                case "in" -> message.setDeliverTimeMs(now + value);
                default -> throw new IllegalArgumentException("unknown delay " + word);
            }
            SendResult result = producer.send(message);
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("begunMs", now);
            row.put("status", result.getSendStatus().name());
            row.put("msgId", result.getMsgId());
            row.put("offsetMsgId", result.getOffsetMsgId());
            row.put("recallHandle", result.getRecallHandle());
            if (recall.equals(Integer.toString(sent.size()))) {
                row.put("recalled", producer.recallMessage(arguments.text("topic"), result.getRecallHandle()));
            }
            sent.add(row);
        }
        if (!trace.isEmpty()) {
            for (Map<String, Object> row : sent) {
                Set<String> kinds = row.containsKey("recalled") ? Set.of("Pub", "Recall") : Set.of("Pub");
                Traces.await(producer, trace, (String) row.get("msgId"), kinds);
            }
        }
        producer.shutdown();
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("sent", sent);
        return report;
    }

    /** Returns RECONSUME_LATER for everything, --max times, and reports what was seen until --expect deliveries. */
    public static Map<String, Object> refuse(Arguments arguments) throws Exception {
        List<Map<String, Object>> seen = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.text("group"));
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(arguments.number("max", 3));
        consumer.subscribe(arguments.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Map<String, Object> row = new LinkedHashMap<>();
                row.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                row.put("topic", message.getTopic());
                row.put("times", message.getReconsumeTimes());
                row.put("atMs", System.currentTimeMillis());
                row.put("msgId", message.getMsgId());
                row.put("storedMs", message.getStoreTimestamp());
                seen.add(row);
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        System.out.println("READY");
        System.out.flush();
        int expect = arguments.number("expect", 1);
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(arguments.number("seconds", 60));
        while (seen.size() < expect && System.nanoTime() < end) {
            Thread.sleep(100);
        }
        Thread.sleep(2_000); // the last answer travels, and nothing more comes
        consumer.shutdown();
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("seen", seen);
        return report;
    }
}
