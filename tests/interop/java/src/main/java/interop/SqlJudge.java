package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * The official SQL92 filter as a judge: --questions FILE --answers FILE.
 *
 * <p>Each line of the first is {@code {"expression":"…","properties":[{…},…]}}. The line of the second is
 * {@code "refused"} when the expression does not compile, else a list with true, false, null or "error" for each
 * set of properties.
 */
final class SqlJudge {
    private SqlJudge() {
    }

    static Map<String, Object> run(Arguments arguments) throws Exception {
        int lines = 0;
        try (BufferedReader in = Files.newBufferedReader(Path.of(arguments.text("questions")));
             BufferedWriter out = Files.newBufferedWriter(Path.of(arguments.text("answers")))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JSONObject asked = JSON.parseObject(line);
                out.write(verdicts(asked.getString("expression"), asked.getJSONArray("properties")));
                out.write('\n');
                lines++;
            }
        }
        return Map.of("lines", lines);
    }

    private static String verdicts(String text, JSONArray propertySets) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text);
        } catch (MQFilterException e) {
            return "\"refused\"";
        }
        List<String> found = new ArrayList<>();
        for (Object each : propertySets) {
            Map<String, String> properties = new HashMap<>();
            ((JSONObject) each).forEach((name, value) -> properties.put(name, (String) value));
            found.add(verdict(expression, properties));
        }
        return "[" + String.join(",", found) + "]";
    }

    private static String verdict(Expression expression, Map<String, String> properties) {
        try {
            return String.valueOf(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Exception e) {
            return "\"error\"";
        }
    }
}
