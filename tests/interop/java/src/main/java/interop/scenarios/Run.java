package interop.scenarios;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import interop.Arguments;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Many scenarios at once in one JVM: {@code run --namesrv HOST:PORT --prefix NAME --scenarios A,five.B}.
 *
 * <p>Each scenario prints one line {@code RESULT name {json}}, or {@code FAILED name} and where. Compiled and run with
 * the 4.9 client too, all but the sub-package five.
 */
public final class Run {
    private Run() {
    }

    public static void main(String[] words) throws Exception {
        System.setErr(System.out); // one lock for both: no complaint of a client in the middle of a result
        Arguments arguments = new Arguments(words);
        List<Thread> threads = new ArrayList<>();
        for (String name : arguments.text("scenarios").split(",")) {
            Class<?> type = Class.forName("interop.scenarios." + name);
            Scenario scenario = (Scenario) type.getDeclaredConstructor().newInstance();
            Place place = new Place(arguments.text("namesrv"), arguments.text("prefix") + "-" + type.getSimpleName());
            threads.add(new Thread(() -> run(name, scenario, place), name));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        Runtime.getRuntime().halt(0); // official clients leave threads behind that would keep the JVM
    }

    private static void run(String name, Scenario scenario, Place place) {
        try {
            Map<String, Object> result = scenario.run(place);
            say("RESULT " + name + " " + JSON.toJSONString(result,
                SerializerFeature.MapSortField, SerializerFeature.WriteNonStringKeyAsString));
        } catch (Throwable e) {
            e.printStackTrace();
            say("FAILED " + name + " " + e);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }
}
