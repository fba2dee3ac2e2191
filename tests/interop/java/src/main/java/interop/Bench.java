package interop;

import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * What org.apache.rocketmq.example.benchmark.Producer and Consumer do: threads that send bodies of one size, and
 * a push consumer with its default threads that counts.
 *
 * <p>The JVM warms up for --warm seconds before --secs seconds count.
 */
final class Bench {
    private Bench() {
    }

    static Map<String, Object> produce(Arguments arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("benchmark_producer");
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        boolean async = arguments.text("mode", "sync").equals("async");
        int threads = arguments.number("threads", 64);
        String topic = arguments.text("topic");
        byte[] body = new byte[arguments.number("size", 128)];
        Arrays.fill(body, (byte) 'x');
        Semaphore window = new Semaphore(arguments.number("window", 1024));
        AtomicLong sent = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                while (true) {
                    try {
                        Message message = new Message(topic, body);
                        if (async) {
                            window.acquire();
                            producer.send(message, new Counting(sent, failed, window));
                        } else {
                            producer.send(message);
                            sent.incrementAndGet();
                        }
                    } catch (Exception e) {
                        failed.incrementAndGet();
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        TimeUnit.SECONDS.sleep(arguments.number("warm", 10));
        long before = sent.get();
        long failedBefore = failed.get();
        long begin = System.nanoTime();
        TimeUnit.SECONDS.sleep(arguments.number("secs", 5));
        double seconds = (System.nanoTime() - begin) / 1e9;
        Map<String, Object> report = new TreeMap<>();
        report.put("perSecond", (sent.get() - before) / seconds);
        report.put("failed", failed.get() - failedBefore);
        report.put("total", sent.get());
        return report;
    }

    static Map<String, Object> consume(Arguments arguments) throws Exception {
        AtomicLong received = new AtomicLong();
        long warm = arguments.number("warm", 0);
        long count = arguments.number("count", 1);
        CountDownLatch warmed = new CountDownLatch(1);
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.text("group"));
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = received.addAndGet(messages.size());
            if (now > warm) {
                warmed.countDown();
            }
            if (now >= warm + count) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        warmed.await(60, TimeUnit.SECONDS);
        long before = received.get();
        long begin = System.nanoTime();
        boolean complete = all.await(arguments.number("secs", 30), TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - begin) / 1e9;
        Map<String, Object> report = new TreeMap<>();
        report.put("perSecond", (received.get() - before) / seconds);
        report.put("complete", complete);
        report.put("total", received.get());
        return report;
    }

    private record Counting(AtomicLong sent, AtomicLong failed, Semaphore window) implements SendCallback {
        @Override
        public void onSuccess(SendResult result) {
            sent.incrementAndGet();
            window.release();
        }

        @Override
        public void onException(Throwable e) {
            failed.incrementAndGet();
            window.release();
        }
    }
}
