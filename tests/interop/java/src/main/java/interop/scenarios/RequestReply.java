package interop.scenarios;

import interop.Traffic;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Requests and their replies, many at once; requests with an odd key property stay unanswered until they time out.
 *
 * <p>The call that waits is used with 4.9 only: in 5.3.3 it reports a time-out as soon as the request was sent.
 */
public final class RequestReply implements Scenario {
    private static final int COUNT = 20;
    private static final int UNANSWERED = 3;
    private static final int PATIENT_MS = 20_000;
    private static final int HASTY_MS = 1_500;

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        DefaultMQProducer answering = new DefaultMQProducer(place.topic + "-answering");
        place.prepare(answering);
        answering.setInstanceName(place.topic + "-answering");
        answering.start();
        DefaultMQPushConsumer responder = responder(place, answering);
        DefaultMQProducer asking = place.producer();
        Map<String, String> replies = new ConcurrentHashMap<>();
        Map<String, String> failures = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(COUNT + UNANSWERED);
        for (int i = 0; i < COUNT + UNANSWERED; i++) {
            Message request = request(place, "async-" + i, i < COUNT);
            asking.request(request, callback(request.getKeys(), replies, failures, done),
                i < COUNT ? PATIENT_MS : HASTY_MS);
        }
        boolean complete = done.await(Place.WAIT_S, TimeUnit.SECONDS);
        if (MQVersion.CURRENT_VERSION < MQVersion.Version.V5_0_0.ordinal()) {
            for (int i = 0; i < COUNT; i++) {
                Message request = request(place, "sync-" + i, true);
                replies.put(request.getKeys(), text(asking.request(request, PATIENT_MS)));
            }
        }
        responder.shutdown();
        answering.shutdown();
        asking.shutdown();
        Map<String, Object> report = new HashMap<>();
        report.put("complete", complete);
        report.put("replies", replies);
        report.put("failures", failures);
        return report;
    }

    private static DefaultMQPushConsumer responder(Place place, DefaultMQProducer answering) throws Exception {
        DefaultMQPushConsumer consumer = place.push("responder");
        consumer.subscribe(place.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getUserProperty("answer").equals("true")) {
                    try {
                        answering.send(
                            MessageUtil.createReplyMessage(message, ("reply to " + text(message)).getBytes(
                                StandardCharsets.UTF_8)), PATIENT_MS);
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        place.awaitShared(4, consumer);
        return consumer;
    }

    private static Message request(Place place, String name, boolean answer) {
        Message request = Traffic.message(place.topic, place.topic, 0, false);
        request.setKeys(name);
        request.setBody(("question " + name + " Grüße 消息").getBytes(StandardCharsets.UTF_8));
        request.putUserProperty("answer", Boolean.toString(answer));
        return request;
    }

    private static RequestCallback callback(
        String key, Map<String, String> replies, Map<String, String> failures, CountDownLatch done) {
        return new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                replies.put(key, text(reply));
                done.countDown();
            }

            @Override
            public void onException(Throwable e) {
                failures.put(key, e.getClass().getSimpleName());
                done.countDown();
            }
        };
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
