package interop;

import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * DefaultMQProducer with its retries, sending to a broker that dies again and again: --run NAME --journal FILE
 * --until FILE.
 *
 * <p>Sends the messages of Traffic until the file {@code until} is there. Each SEND_OK is one line of the journal:
 * {@code key queueId queueOffset sum}; each STEP of them is one line {@code AT count} of the output.
 */
final class Endure {
    private static final int THREADS = 4;
    private static final int STEP = 25;
    private static final int PAUSE_MS = 10; // after a failure: the broker is away

    private Endure() {
    }

    static Map<String, Object> run(Arguments arguments) throws Exception {
        String run = arguments.text("run");
        String topic = arguments.text("topic");
        DefaultMQProducer producer = new DefaultMQProducer("interop-endure-" + run);
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.setSendMsgTimeout(arguments.number("timeout", 3000));
        producer.setPollNameServerInterval(arguments.number("poll", 30_000));
        producer.setRetryTimesWhenSendFailed(arguments.number("retries", 2));
        producer.start();
        AtomicInteger next = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        AtomicInteger other = new AtomicInteger();
        AtomicInteger acknowledged = new AtomicInteger();
        Path until = Path.of(arguments.text("until"));
        PrintWriter journal = new PrintWriter(Files.newBufferedWriter(Path.of(arguments.text("journal"))));
        AtomicBoolean isOver = new AtomicBoolean();
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        for (int thread = 0; thread < THREADS; thread++) {
            threads.submit(() -> {
                while (!isOver.get()) {
                    int i = next.getAndIncrement();
                    Message message = Traffic.message(topic, run, i, true);
                    try {
                        SendResult result = producer.send(message);
                        if (result.getSendStatus() == SendStatus.SEND_OK) {
                            journal.println(message.getKeys() + " " + result.getMessageQueue().getQueueId() + " "
                                + result.getQueueOffset() + " " + Long.toUnsignedString(Traffic.sum(message)));
                            int count = acknowledged.incrementAndGet();
                            if (count % STEP == 0) {
                                System.out.println("AT " + count);
                            }
                        } else {
                            other.incrementAndGet();
                        }
                    } catch (InterruptedException e) {
                        return;
                    } catch (Exception e) {
                        failed.incrementAndGet();
                        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(PAUSE_MS));
                    }
                }
            });
        }
        while (!Files.exists(until)) {
            TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
        }
        // Interrupted, a send of the client may fail, or forget that it was.
        isOver.set(true);
        threads.shutdown();
        threads.awaitTermination(30, TimeUnit.SECONDS);
        producer.shutdown();
        journal.close();
        Map<String, Object> report = new HashMap<>();
        report.put("sent", next.get());
        report.put("acknowledged", acknowledged.get());
        report.put("failed", failed.get());
        report.put("otherStatus", other.get());
        return report;
    }
}
