package interop;

import java.io.IOException;

/** How our programs end: RocketMQ's threads would keep the process alive, so it is halted either way. */
final class Program {
    private Program() {
    }

    /** Call first in main: an exception there ends the program with exit code 1, and only our lines are printed. */
    static void failLoudly() {
        Json.flush();    // takes standard output for itself, before a library can log to it
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Json.flush();
            Runtime.getRuntime().halt(1);
        });
    }

    /** A thread that lives as long as standard input is open; what comes in is thrown away. */
    static Thread watchInput() {
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;    // only the end of input means something
                }
            } catch (IOException e) {
                System.err.println("standard input: " + e);
            }
        });
        reader.setDaemon(true);
        reader.start();
        return reader;
    }

    static void end() {
        Json.flush();
        Runtime.getRuntime().halt(0);
    }
}
