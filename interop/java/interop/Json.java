package interop;

import java.io.BufferedWriter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** One JSON object per line on standard output. Text that is not from us never reaches this stream. */
final class Json {
    private static final int BUFFER_CHARS = 1 << 16;
    private static final Writer OUT = new BufferedWriter(
        new OutputStreamWriter(new FileOutputStream(FileDescriptor.out), StandardCharsets.UTF_8), BUFFER_CHARS);

    static {
        System.setOut(System.err);    // libraries print banners; keep our lines clean
    }

    private Json() {
    }

    static Map<String, Object> object(Object... keysAndValues) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < keysAndValues.length; i += 2) {
            map.put((String) keysAndValues[i], keysAndValues[i + 1]);
        }
        return map;
    }

    static void line(Map<String, Object> object) {
        line(new StringBuilder(256), object);
    }

    /** A line of one job of many, with its id before it. */
    static void line(String id, Map<String, Object> object) {
        line(new StringBuilder(256).append(id).append('\t'), object);
    }

    private static void line(StringBuilder text, Map<String, Object> object) {
        write(text, object);
        text.append('\n');
        synchronized (OUT) {
            try {
                OUT.write(text.toString());
            } catch (IOException e) {
                Runtime.getRuntime().halt(3);    // the reader went away; nobody is left to tell
            }
        }
    }

    static void flush() {
        synchronized (OUT) {
            try {
                OUT.flush();
            } catch (IOException e) {
                Runtime.getRuntime().halt(3);
            }
        }
    }

    private static void write(StringBuilder text, Object value) {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            text.append(value);
        } else if (value instanceof Map<?, ?> map) {
            text.append('{');
            String comma = "";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                text.append(comma);
                quote(text, String.valueOf(entry.getKey()));
                text.append(':');
                write(text, entry.getValue());
                comma = ",";
            }
            text.append('}');
        } else if (value instanceof Iterable<?> items) {
            text.append('[');
            String comma = "";
            for (Object item : items) {
                text.append(comma);
                write(text, item);
                comma = ",";
            }
            text.append(']');
        } else {
            quote(text, value.toString());
        }
    }

    private static void quote(StringBuilder text, String value) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }
}
