package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.util.Map;

/**
 * Official RocketMQ classes as judges: one sub-command a run, one {@code RESULT {json}} line at its end.
 *
 * <p>{@code READY} is printed by commands that wait for others (consumers), once they are assigned queues.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] words) {
        try {
            System.out.println(result(words));
        } catch (Throwable e) {
            e.printStackTrace();
            System.err.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // official clients leave threads behind that would keep the JVM
    }

    /** Runs one command to its end; its line. */
    static String result(String[] words) throws Exception {
        Map<String, Object> result = run(words[0], new Arguments(words));
        return "RESULT " + JSON.toJSONString(result,
            SerializerFeature.MapSortField, SerializerFeature.WriteNonStringKeyAsString);
    }

    private static Map<String, Object> run(String command, Arguments arguments) throws Exception {
        return switch (command) {
            case "send" -> Send.run(arguments);
            case "endure" -> Endure.run(arguments);
            case "push" -> Receive.push(arguments);
            case "lite" -> Receive.lite(arguments);
            case "admin" -> Admin.run(arguments);
            case "sql" -> SqlJudge.run(arguments);
            case "pop-push" -> Pop.push(arguments);
            case "pop-api" -> Pop.api(arguments, false);
            case "pop-ordered" -> Pop.api(arguments, true);
            case "delay-send" -> Delay.send(arguments);
            case "delay-refuse" -> Delay.refuse(arguments);
            case "store-read" -> StoreReader.run(arguments);
            case "bench-produce" -> Bench.produce(arguments);
            case "bench-consume" -> Bench.consume(arguments);
            default -> throw new IllegalArgumentException("unknown sub-command " + command);
        };
    }
}
