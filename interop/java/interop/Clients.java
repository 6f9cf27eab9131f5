package interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** What all our clients have in common. */
final class Clients {
    // By default 3 s, which a JVM that just started on a busy machine may need for its first answer; a 5.x consumer
    // whose first question has no answer by then does not start.
    private static final int API_TIMEOUT_MS = 20_000;

    private Clients() {
    }

    static void prepare(ClientConfig client, String namesrv) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
    }

    /**
     * What signs the requests of a client: [accessKey secretKey] [tamper=true: change each request behind the
     * signature]. Null without a key.
     */
    static RPCHook hook(Args args) {
        if (!args.has("accessKey")) {
            return null;
        }
        RPCHook signs = new AclClientRPCHook(new SessionCredentials(args.text("accessKey"), args.text("secretKey")));
        return args.flag("tamper") ? new Tampers(signs) : signs;
    }

    private static final class Tampers implements RPCHook {
        private final RPCHook signs;

        Tampers(RPCHook signs) {
            this.signs = signs;
        }

        @Override
        public void doBeforeRequest(String remoteAddr, RemotingCommand request) {
            signs.doBeforeRequest(remoteAddr, request);
            request.getExtFields().put("Signature", request.getExtFields().get("Signature").replaceFirst("^.", "#"));
        }

        @Override
        public void doAfterResponse(String remoteAddr, RemotingCommand request, RemotingCommand response) {
        }
    }
}
