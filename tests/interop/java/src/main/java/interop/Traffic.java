package interop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The messages that the tests move, and the sums by which sender and receiver are compared.
 *
 * <p>Message {@code i} of run {@code r} has key {@code r-i}, tag TagB for each third one and TagA else, two
 * properties (one not ASCII), and a body of 1 to 300 random bytes; each 250th is text of 20,000 bytes, which
 * clients compress. The sum of a set of messages is the sum of the first 8 bytes of each one's SHA-256, so it
 * does not depend on order.
 */
public final class Traffic {
    public static final int LARGE_EACH = 250;

    private Traffic() {
    }

    public static Message message(String topic, String run, int i, boolean large) {
        Random random = new Random(31L * run.hashCode() + i);
        byte[] body;
        if (large && i % LARGE_EACH == 0) {
            body = ("row " + i + " of " + run + "\n").repeat(20_000).substring(0, 20_000)
                .getBytes(StandardCharsets.UTF_8);
        } else {
            body = new byte[1 + random.nextInt(300)];
            random.nextBytes(body);
        }
        Message message = new Message(topic, i % 3 == 0 ? "TagB" : "TagA", run + "-" + i, body);
        message.putUserProperty("index", Integer.toString(i));
        message.putUserProperty("text", "Grüße 消息 😀 " + i);
        message.setFlag(i);
        return message;
    }

    static long sum(Message message) {
        return sum(message, message.getTopic());
    }

    /** The sum that {@code message} would have in {@code topic}: a dead letter still counts as what was sent. */
    public static long sum(Message message, String topic) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            String head = String.join("|", topic, message.getTags(), message.getKeys(),
                message.getUserProperty("index"), message.getUserProperty("text"),
                Integer.toString(message.getFlag()));
            digest.update(head.getBytes(StandardCharsets.UTF_8));
            digest.update((byte) 0);
            return ByteBuffer.wrap(digest.digest(message.getBody())).getLong();
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Counts and sums of messages by tag; each key counts once, repeats are counted apart. */
    static final class Ledger {
        private final Map<String, Integer> counts = new TreeMap<>();
        private final Map<String, Long> sums = new TreeMap<>();
        private final Set<String> keys = new HashSet<>();
        private final Set<String> places = new HashSet<>();
        private int duplicates;
        private int placesReused;

        synchronized void add(Message message) {
            if (!keys.add(message.getKeys())) {
                duplicates++;
                return;
            }
            counts.merge(message.getTags(), 1, Integer::sum);
            sums.merge(message.getTags(), sum(message), Long::sum);
            if (message instanceof MessageExt got
                && !places.add(got.getBrokerName() + "/" + got.getQueueId() + "/" + got.getQueueOffset())) {
                placesReused++;
            }
        }

        synchronized int distinct() {
            return keys.size();
        }

        synchronized Map<String, Object> report() {
            Map<String, Object> byTag = new TreeMap<>();
            for (String tag : counts.keySet()) {
                byTag.put(tag, Map.of("count", counts.get(tag), "sum", Long.toUnsignedString(sums.get(tag))));
            }
            Map<String, Object> report = new HashMap<>();
            report.put("byTag", byTag);
            report.put("distinct", keys.size());
            report.put("duplicates", duplicates);
            report.put("placesReused", placesReused);
            return report;
        }
    }
}
