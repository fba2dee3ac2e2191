package interop.scenarios;

import interop.Arguments;
import interop.Receive;
import interop.Send;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** A waiting push consumer gets what a producer sends in each of its ways; then a lite pull consumer gets it too. */
public final class Concurrent implements Scenario {
    private static final int EACH = 300;

    @Override
    public Map<String, Object> run(Place place) throws Exception {
        CompletableFuture<Map<String, Object>> pushed = new CompletableFuture<>();
        Thread consumer = new Thread(() -> {
            try {
                pushed.complete(Receive.push(arguments(place, "push")));
            } catch (Exception e) {
                pushed.completeExceptionally(e);
            }
        });
        consumer.start();
        Map<String, Object> report = new HashMap<>();
        report.put("sent", Send.run(new Arguments(new String[] {"send", "--namesrv", place.namesrv, "--topic",
            place.topic, "--run", place.topic, "--modes", "sync,async,oneway,batch", "--each",
            Integer.toString(EACH)})));
        report.put("pushed", pushed.get());
        report.put("polled", Receive.lite(arguments(place, "lite")));
        return report;
    }

    private static Arguments arguments(Place place, String group) {
        return new Arguments(new String[] {"receive", "--namesrv", place.namesrv, "--topic", place.topic, "--group",
            place.topic + "-" + group, "--expect", Integer.toString(4 * EACH)});
    }
}
