package interop;

import java.util.HashMap;
import java.util.Map;

/** {@code --name value} pairs after the sub-command. */
public final class Arguments {
    private final Map<String, String> values = new HashMap<>();

    public Arguments(String[] words) {
        for (int i = 1; i + 1 < words.length; i += 2) {
            values.put(words[i].substring(2), words[i + 1]);
        }
    }

    public String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    public String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    public int number(String name, int otherwise) {
        return Integer.parseInt(values.getOrDefault(name, Integer.toString(otherwise)));
    }
}
