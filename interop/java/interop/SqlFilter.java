package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.ComparisonExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.ParseException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.parser.Token;

/**
 * Apache's own SQL92 filter. Each line of standard input is an expression and the properties of some messages, separated
 * by tabs: expression TAB name=value&name=value TAB ..., all of it URL-encoded. Each answer tells whether the expression
 * compiles, where what it did not read begins, and for each message TRUE, FALSE, NULL, ERROR or the value's class.
 */
public final class SqlFilter {
    private SqlFilter() {
    }

    public static void main(String[] words) throws IOException {
        Program.failLoudly();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Json.line(answer(line.split("\t", -1)));
        }
        Program.end();
    }

    private static Map<String, Object> answer(String[] fields) {
        String text = decoded(fields[0]);
        Expression expression;
        try {
            expression = new org.apache.rocketmq.filter.SqlFilter().compile(text);
        } catch (MQFilterException refusal) {
            return Json.object("compiled", false, "error", String.valueOf(refusal.getCause()));
        }
        List<String> results = new ArrayList<>();
        for (int i = 1; i < fields.length; i++) {
            results.add(result(expression, new Message(fields[i])));
        }
        return Json.object("compiled", true, "rest", new Reader(text).rest(), "results", results);
    }

    private static String result(Expression expression, Message message) {
        Object value;
        try {
            value = expression.evaluate(message);
        } catch (Throwable error) {
            return "ERROR";
        }
        if (value == null) {
            return "NULL";
        }
        return value instanceof Boolean ? value.toString().toUpperCase() : value.getClass().getName();
    }

    private static String decoded(String field) {
        return URLDecoder.decode(field, StandardCharsets.UTF_8);
    }

    /** The broker's own context is in its broker module; this one answers alike. */
    private static final class Message implements EvaluationContext {
        private final Map<String, Object> properties = new HashMap<>();

        Message(String field) {
            for (String item : field.split("&")) {
                int equals = item.indexOf('=');
                if (equals > 0) {
                    properties.put(decoded(item.substring(0, equals)), decoded(item.substring(equals + 1)));
                }
            }
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return properties;
        }
    }

    /** Apache's parser reads as far as it understands and ignores the rest; this one tells where the rest begins. */
    private static final class Reader extends SelectorParser {
        Reader(String text) {
            super(text);
        }

        /** "line:column" of the first token that was not read, counting from 1; empty when all was read. */
        String rest() {
            ComparisonExpression.CONVERT_STRING_EXPRESSIONS.set(true);
            try {
                JmsSelector();
            } catch (ParseException e) {
                throw new IllegalStateException("it compiled before", e);
            } finally {
                ComparisonExpression.CONVERT_STRING_EXPRESSIONS.remove();
            }
            Token next = getToken(1);
            return next.kind == EOF ? "" : next.beginLine + ":" + next.beginColumn;
        }
    }
}
