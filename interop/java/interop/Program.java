package interop;

/** How our programs end: RocketMQ's threads would keep the process alive, so it is halted either way. */
final class Program {
    private Program() {
    }

    /** Call first in main: an exception there ends the program with exit code 1. */
    static void failLoudly() {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Json.flush();
            Runtime.getRuntime().halt(1);
        });
    }

    static void end() {
        Json.flush();
        Runtime.getRuntime().halt(0);
    }
}
