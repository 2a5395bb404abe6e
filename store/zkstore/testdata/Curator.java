import java.util.HashMap;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/** Curator's locks, as told by lines of standard input: "mutex|read|write PATH acquire MILLISECONDS" or "... release". */
public class Curator {
    public static void main(String[] servers) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers[0], new RetryOneTime(100));
        client.start();
        Map<String, InterProcessMutex> locks = new HashMap<>();
        System.out.println("ready");
        for (Scanner in = new Scanner(System.in); in.hasNextLine();) {
            String[] words = in.nextLine().split(" ");
            String key = words[0] + words[1];
            if (!locks.containsKey(key)) {
                locks.put(key, make(client, words[0], words[1]));
            }
            if (words[2].equals("acquire")) {
                System.out.println(locks.get(key).acquire(Long.parseLong(words[3]), TimeUnit.MILLISECONDS));
            } else {
                locks.get(key).release();
                System.out.println("released");
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
