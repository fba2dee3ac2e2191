package interop.scenarios;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Official clients that sign: {@code namesrv topic group accessKey secretKey count}. Prints what became of it, a line
 * each: {@code SENT n}, {@code REFUSED text} of the first send that failed, then {@code PUSHED n} and
 * {@code PULLED n} of those that were sent, unless nothing was.
 */
public final class Signed {
    private static final long PATIENCE_MS = 30_000;

    private final String namesrv;
    private final String topic;
    private final String group;
    private final RPCHook hook;
    private final Set<String> sent = new HashSet<>();

    private Signed(String[] words) {
        namesrv = words[0];
        topic = words[1];
        group = words[2];
        hook = new AclClientRPCHook(new SessionCredentials(words[3], words[4]));
    }

    public static void main(String[] words) throws Exception {
        Signed signed = new Signed(words);
        signed.send(Integer.parseInt(words[5]));
        if (!signed.sent.isEmpty()) {
            System.out.println("PUSHED " + signed.push());
            System.out.println("PULLED " + signed.pull());
        }
        System.out.println("DONE");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void send(int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        String refused = "";
        for (int i = 0; i < count && refused.isEmpty(); i++) {
            byte[] body = ("body " + i).getBytes(StandardCharsets.UTF_8);
            try {
                sent.add(producer.send(new Message(topic, "TagA", "key-" + i, body)).getMsgId());
            } catch (Exception e) {
                StringBuilder texts = new StringBuilder();
                for (Throwable one = e; one != null; one = one.getCause()) {
                    texts.append(one.getMessage()).append("; ");
                }
                refused = texts.toString().replace('\n', ' ');
            }
        }
        if (refused.isEmpty() && count > 1) {
            List<Message> batch = new ArrayList<>();
            batch.add(new Message(topic, "TagB", "one".getBytes(StandardCharsets.UTF_8)));
            batch.add(new Message(topic, "TagB", "two".getBytes(StandardCharsets.UTF_8)));
            for (String id : producer.send(batch).getMsgId().split(",")) {
                sent.add(id);
            }
        }
        producer.shutdown();
        System.out.println("SENT " + sent.size());
        if (!refused.isEmpty()) {
            System.out.println("REFUSED " + refused);
        }
    }

    private int push() throws Exception {
        Set<String> came = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> came.add(message.getMsgId()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Place.until("all are pushed", () -> came.containsAll(sent) ? came : null);
        consumer.shutdown();
        return came.size();
    }

    private int pull() throws Exception {
        Set<String> came = new HashSet<>();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group + "-pull", hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (!came.containsAll(sent) && System.nanoTime() < until) {
            for (MessageExt message : consumer.poll(1000)) {
                came.add(message.getMsgId());
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        return came.size();
    }
}
