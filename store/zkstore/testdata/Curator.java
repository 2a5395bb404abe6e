import java.util.HashMap;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;

/**
 * Curator's locks, controlled by lines of standard input: "ID mutex|read|write PATH acquire
 * MILLISECONDS" or "... release". Each ID has its own thread, because a lock belongs to a thread, and
 * no thread waits for another's lock. Replies begin with the ID.
 */
public class Curator {
    static final int TIMEOUT_MILLIS = 10 * 60 * 1000; // so that no session ends on a busy machine

    public static void main(String[] servers) throws Exception {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(servers[0], TIMEOUT_MILLIS, TIMEOUT_MILLIS, new RetryNTimes(100, 100));
        client.start();
        Map<String, ExecutorService> threads = new HashMap<>();
        say("ready");
        for (Scanner in = new Scanner(System.in); in.hasNextLine();) {
            String[] words = in.nextLine().split(" ");
            threads.computeIfAbsent(words[0], id -> Executors.newSingleThreadExecutor()).execute(
                new Locker(client, words));
        }
        System.exit(0);
    }

    static synchronized void say(String words) {
        System.out.println(words);
        System.out.flush();
    }

    static class Locker implements Runnable {
        static final Map<String, InterProcessMutex> LOCKS = new HashMap<>();
        final InterProcessMutex lock;
        final String[] words;

        Locker(CuratorFramework client, String[] words) {
            this.words = words;
            this.lock = LOCKS.computeIfAbsent(words[0] + words[1] + words[2], key -> make(client, words[1], words[2]));
        }

        public void run() {
            try {
                if (words[3].equals("acquire")) {
                    say(words[0] + " " + lock.acquire(Long.parseLong(words[4]), TimeUnit.MILLISECONDS));
                } else {
                    lock.release();
                    say(words[0] + " released");
                }
            } catch (Exception e) {
                say(words[0] + " " + e);
            }
        }
    }

    static InterProcessMutex make(CuratorFramework client, String kind, String path) {
        switch (kind) {
            case "mutex": return new InterProcessMutex(client, path);
            case "read": return new InterProcessReadWriteLock(client, path).readLock();
            default: return new InterProcessReadWriteLock(client, path).writeLock();
        }
    }
}
