package interop;

import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;

/** One run of a program in a Host: its arguments, the lines it is sent, and those it tells. */
final class Job {
    final Args args;

    private static final String END = new String("end");    // not equal, by identity, to any line
    private final String id;
    private final LinkedBlockingQueue<String> input = new LinkedBlockingQueue<>();
    private volatile boolean open = true;

    Job(String id, Args args) {
        this.id = id;
        this.args = args;
    }

    /** A client's instance name that no other job has: clients of one name share their connections. */
    String instance(String kind) {
        return kind + "-" + ProcessHandle.current().pid() + "-" + id;
    }

    void line(Map<String, Object> object) {
        Json.line(id, object);
    }

    void flush() {
        Json.flush();
    }

    /** True until it is asked to end. */
    boolean isOpen() {
        return open;
    }

    /** The next line that it was sent; null when it is to end. */
    String readLine() throws InterruptedException {
        String line = input.take();
        return line == END ? null : line;
    }

    void awaitEnd() throws InterruptedException {
        while (readLine() != null) {
            continue;    // only the end means something
        }
    }

    void take(String line) {
        input.add(line);
    }

    void close() {
        open = false;
        input.add(END);
    }
}
