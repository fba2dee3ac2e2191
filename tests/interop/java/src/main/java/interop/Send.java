package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** DefaultMQProducer in each of its ways of sending: --modes sync,async,oneway,batch --each N --run NAME. */
public final class Send {
    private static final int THREADS = 4;
    private static final int WINDOW = 256;
    private static final int BATCH = 40;

    private final DefaultMQProducer producer;
    private final String topic;
    private final Traffic.Ledger ledger = new Traffic.Ledger();
    private final AtomicInteger failed = new AtomicInteger();
    private final AtomicReference<String> firstFailure = new AtomicReference<>();

    private Send(DefaultMQProducer producer, String topic) {
        this.producer = producer;
        this.topic = topic;
    }

    public static Map<String, Object> run(Arguments arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-producer-" + arguments.text("run"));
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Send sender = new Send(producer, arguments.text("topic"));
        int each = arguments.number("each", 1000);
        long begin = System.currentTimeMillis();
        for (String mode : arguments.text("modes").split(",")) {
            sender.send(mode, arguments.text("run") + "-" + mode, each);
        }
        Map<String, Object> report = sender.ledger.report();
        report.put("failed", sender.failed.get());
        report.put("firstFailure", sender.firstFailure.get());
        report.put("tookMs", System.currentTimeMillis() - begin);
        producer.shutdown();
        return report;
    }

    private void send(String mode, String run, int each) throws Exception {
        switch (mode) {
            case "sync" -> sync(run, each);
            case "async" -> async(run, each);
            case "oneway" -> oneway(run, each);
            case "batch" -> batch(run, each);
            default -> throw new IllegalArgumentException("unknown mode " + mode);
        }
    }

    private void sync(String run, int each) throws InterruptedException {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        for (int first = 0; first < THREADS; first++) {
            int start = first;
            threads.submit(() -> {
                for (int i = start; i < each; i += THREADS) {
                    Message message = Traffic.message(topic, run, i, true);
                    try {
                        took(message, producer.send(message));
                    } catch (Exception e) {
                        refused(e);
                    }
                }
            });
        }
        threads.shutdown();
        threads.awaitTermination(60, TimeUnit.SECONDS);
    }

    private void async(String run, int each) throws Exception {
        Semaphore window = new Semaphore(WINDOW);
        for (int i = 0; i < each; i++) {
            window.acquire();
            Message message = Traffic.message(topic, run, i, true);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    took(message, result);
                    window.release();
                }

                @Override
                public void onException(Throwable e) {
                    refused(e);
                    window.release();
                }
            });
        }
        window.tryAcquire(WINDOW, 60, TimeUnit.SECONDS);
    }

    private void oneway(String run, int each) throws Exception {
        for (int i = 0; i < each; i++) {
            Message message = Traffic.message(topic, run, i, true);
            producer.sendOneway(message);
            ledger.add(message);
        }
    }

    private void batch(String run, int each) throws Exception {
        for (int first = 0; first < each; first += BATCH) {
            List<Message> messages = new ArrayList<>();
            for (int i = first; i < Math.min(each, first + BATCH); i++) {
                messages.add(Traffic.message(topic, run, i, false));
            }
            SendResult result = producer.send(messages);
            if (result.getMsgId().split(",").length != messages.size()
                || result.getOffsetMsgId().split(",").length != messages.size()) {
                refused(new IllegalStateException("a batch of " + messages.size() + " gave " + result));
            }
            for (Message message : messages) {
                took(message, result);
            }
        }
    }

    private void took(Message message, SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            ledger.add(message);
        } else {
            refused(new IllegalStateException(result.toString()));
        }
    }

    private void refused(Throwable e) {
        failed.incrementAndGet();
        firstFailure.compareAndSet(null, e.toString());
    }
}
