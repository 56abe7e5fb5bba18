// Apache Curator's InterProcessMutex, as its documentation uses it: one CuratorFramework per process,
// a mutex and a thread per client. Arguments and output are those of every driver (worker.rs).

import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public final class CuratorLock {
    private static final long MS = 1_000_000;
    private static final AtomicLong FAILED = new AtomicLong();
    private static final AtomicReference<String> FAILURE = new AtomicReference<>();

    /** One client: what it got, and when. */
    private static final class Client {
        volatile long count;
        final List<Long> holds = new ArrayList<>();
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            args.put(arguments[i].substring(2), arguments[i + 1]);
        }
        CuratorFramework framework =
                CuratorFrameworkFactory.newClient(
                        args.get("urls"), new ExponentialBackoffRetry(1000, 3));
        framework.start();
        if (!framework.blockUntilConnected(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + args.get("urls"));
        }
        System.out.println("{\"version\":\"" + version() + "\"}");
        System.out.flush();

        String line = new BufferedReader(new InputStreamReader(System.in)).readLine();
        if (line == null) {
            // Whoever started it is gone; Curator's own threads would keep it alive.
            System.exit(1);
        }
        long start = Long.parseLong(line.trim());
        long warm = Long.parseLong(args.get("warm-ms")) * MS;
        long from = start + warm;
        long to = from + Long.parseLong(args.get("run-ms")) * MS;
        boolean own = args.get("keys").equals("own");
        List<Client> clients = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args.get("clients")); n++) {
            Client client = new Client();
            String path = "/peers-curator/" + args.get("key") + (own ? "-" + n : "");
            InterProcessMutex mutex = new InterProcessMutex(framework, path);
            Thread thread =
                    new Thread(() -> work(mutex, client, start, start + warm / 2, from, to));
            thread.setDaemon(true);
            clients.add(client);
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            long left = (to - System.nanoTime()) / MS + 1000;
            thread.join(Math.max(1, left));
        }
        StringBuilder counts = new StringBuilder();
        StringBuilder holds = new StringBuilder();
        for (int n = 0; n < clients.size(); n++) {
            if (threads.get(n).isAlive()) {
                // Its list may still change; it waits for a lock that it does not get.
                failed("an acquire did not end within a second of the end");
                counts.append(n == 0 ? "" : ",").append(0);
                continue;
            }
            Client client = clients.get(n);
            counts.append(n == 0 ? "" : ",").append(client.count);
            for (int i = 0; i < client.holds.size(); i += 2) {
                holds.append(holds.length() == 0 ? "" : ",").append(n);
                holds.append(',').append(client.holds.get(i));
                holds.append(',').append(client.holds.get(i + 1));
            }
        }
        String failure = FAILURE.get();
        System.out.println(
                "{\"counts\":[" + counts + "],\"failed\":" + FAILED.get() + ",\"failure\":"
                        + (failure == null ? "null" : "\"" + failure.replaceAll("[\"\\\\\n]", " ") + "\"")
                        + ",\"holds\":[" + holds + "]}");
        System.out.flush();
        System.exit(0);
    }

    /** As Maven wrote it into the jar. */
    private static String version() throws Exception {
        String path = "/META-INF/maven/org.apache.curator/curator-recipes/pom.properties";
        try (InputStream file = InterProcessMutex.class.getResourceAsStream(path)) {
            Properties properties = new Properties();
            properties.load(file);
            return properties.getProperty("version");
        }
    }

    private static void work(
            InterProcessMutex mutex, Client client, long start, long probeUntil, long from, long to) {
        try {
            TimeUnit.NANOSECONDS.sleep(start - System.nanoTime());
        } catch (InterruptedException error) {
            return;
        }
        while (System.nanoTime() < to) {
            try {
                long patience = to - System.nanoTime() + 500 * MS;
                if (!mutex.acquire(patience, TimeUnit.NANOSECONDS)) {
                    failed("the wait was over");
                    continue;
                }
                long acquired = System.nanoTime();
                if (acquired < probeUntil) {
                    Thread.sleep(1);
                }
                long released = System.nanoTime();
                mutex.release();
                long now = System.nanoTime();
                if (now >= from && now < to) {
                    client.count++;
                }
                client.holds.add(acquired - start);
                client.holds.add(released - start);
            } catch (Exception error) {
                failed(error.toString());
            }
        }
    }

    private static void failed(String why) {
        FAILED.incrementAndGet();
        FAILURE.compareAndSet(null, why);
    }
}
