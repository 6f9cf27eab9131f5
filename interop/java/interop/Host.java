package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Runs any number of jobs, one after the other or at once, in one JVM: to start one for each would take longer than
 * most of them last. Commands come on standard input, their parts separated by tabs:
 *
 * start ID PROGRAM KEY=VALUE...: begin a job; line ID TEXT: send it a line; close ID: ask it to end
 *
 * What a job tells comes as a line "ID TAB JSON". Its last is {"ended":true}, or {"ended":false,"error":...} with the
 * stack trace. The end of input ends everything.
 */
public final class Host {
    private interface Runner {
        void run(Job job) throws Exception;
    }

    private static final Map<String, Runner> PROGRAMS = Map.of(
        "Consume", Consume::run,
        "LitePull", LitePull::run,
        "Measure", Measure::run,
        "Outlast", Outlast::run,
        "Produce", Produce::run,
        "Query", Query::run,
        "Request", Request::run,
        "Timed", Timed::run,
        "Transact", Transact::run);

    private static final Map<String, Job> JOBS = new ConcurrentHashMap<>();

    private Host() {
    }

    public static void main(String[] words) throws IOException {
        Program.failLoudly();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] parts = line.split("\t", 3);
            switch (parts[0]) {
                case "start" -> start(parts[1], parts[2].split("\t"));
                case "line" -> tell(parts[1], parts[2]);
                case "close" -> close(parts[1]);
                default -> throw new IllegalArgumentException("unknown command " + line);
            }
        }
        Program.end();
    }

    private static void start(String id, String[] words) {
        Job job = new Job(id, new Args(words, 1));
        JOBS.put(id, job);
        new Thread(() -> run(id, words[0], job), words[0] + "-" + id).start();
    }

    private static void run(String id, String program, Job job) {
        Map<String, Object> last;
        try {
            PROGRAMS.get(program).run(job);
            last = Json.object("ended", true);
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace, true));
            last = Json.object("ended", false, "error", trace.toString());
        }
        JOBS.remove(id);
        job.line(last);
        job.flush();
    }

    /** One that has ended by itself hears no more. */
    private static void tell(String id, String line) {
        Job job = JOBS.get(id);
        if (job != null) {
            job.take(line);
        }
    }

    private static void close(String id) {
        Job job = JOBS.get(id);
        if (job != null) {
            job.close();
        }
    }
}
