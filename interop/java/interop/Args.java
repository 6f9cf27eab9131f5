package interop;

import java.util.LinkedHashMap;
import java.util.Map;

/** Arguments of the form key=value; a key that nobody gave has a default or is a plain error. */
final class Args {
    private final Map<String, String> values = new LinkedHashMap<>();

    Args(String[] words, int first) {
        for (int i = first; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("expected key=value, got: " + words[i]);
            }
            values.put(words[i].substring(0, equals), words[i].substring(equals + 1));
        }
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException("missing argument " + key + "=");
        }
        return value;
    }

    String text(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        return values.containsKey(key) ? Integer.parseInt(values.get(key)) : otherwise;
    }

    long number64(String key) {
        return Long.parseLong(text(key));
    }

    boolean flag(String key) {
        return Boolean.parseBoolean(values.get(key));
    }

    boolean has(String key) {
        return values.containsKey(key);
    }

    /** The arguments that start with prefix, without it. */
    Map<String, String> under(String prefix) {
        Map<String, String> found = new LinkedHashMap<>();
        values.forEach((key, value) -> {
            if (key.startsWith(prefix)) {
                found.put(key.substring(prefix.length()), value);
            }
        });
        return found;
    }
}
