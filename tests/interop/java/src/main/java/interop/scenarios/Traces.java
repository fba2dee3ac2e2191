package interop.scenarios;

import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** What official clients have traced. */
public final class Traces {
    private Traces() {
    }

    /**
     * Wait until these kinds of traces of a message are stored. Whoever shuts a client down should: it drops traces
     * that are not sent within half a second, and may send others twice.
     */
    public static void await(DefaultMQProducer producer, String topic, String id, Set<String> kinds) throws Exception {
        Place.until(kinds + " of " + id, () -> kinds(producer, topic, id).containsAll(kinds) ? id : null);
    }

    private static Set<String> kinds(DefaultMQProducer producer, String topic, String id) throws Exception {
        Set<String> found = new HashSet<>();
        for (Message trace : producer.queryMessage(topic, id, 64, 0, Long.MAX_VALUE).getMessageList()) {
            for (String context : new String(trace.getBody(), StandardCharsets.UTF_8).split("\u0002")) {
                if (context.contains(id)) {
                    found.add(context.split("\u0001")[0]);
                }
            }
        }
        return found;
    }
}
