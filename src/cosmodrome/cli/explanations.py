"""Meanings of codes, send statuses and errors, and advice for each: the data behind `cosmodrome explain`."""

from __future__ import annotations

from typing import NamedTuple

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.numbers import MAX_INT, parse_int


class Explanation(NamedTuple):
    """One meaning of a code or a name."""

    kind: str  # "response", "request", "send status" or "error"
    code: int | None
    name: str
    meaning: str
    advice: str


R = ResponseCode
# Meaning, and what to do.
RESPONSES: dict[int, tuple[str, str]] = {
    R.SUCCESS: ("The request was done.", "Nothing."),
    R.SYSTEM_ERROR: (
        "The server could not do it; the remark says why. Apache's brokers also refuse access keys with this code.",
        "Read the remark, then the log of the server that is named in the error.",
    ),
    R.SYSTEM_BUSY: (
        "The broker turns requests away because it is overloaded: its disk or its queue of waiting sends is too slow.",
        "Send again a little later; look at `cosmodrome brokers describe` for waiting sends and at the disk.",
    ),
    R.REQUEST_CODE_NOT_SUPPORTED: (
        "The server does not know this kind of request.",
        "Check the address: name servers usually listen on 9876, brokers on 10911. An older server may need an update.",
    ),
    R.TRANSACTION_FAILED: ("The transaction was not recorded.", "Send the half message again."),
    R.FLUSH_DISK_TIMEOUT: (
        "The message is stored, but it was not on disk within syncFlushTimeout.",
        "The message may be lost if the machine fails now. Send it again if consumers handle repeats; check the disk.",
    ),
    R.SLAVE_NOT_AVAILABLE: (
        "A SYNC_MASTER has no slave that follows closely enough, or a slave got a request for a master.",
        "Start the slave, or look with `cosmodrome doctor` at replication.",
    ),
    R.FLUSH_SLAVE_TIMEOUT: (
        "The message is stored on the master, but too few slaves had it within slaveTimeout.",
        "It may be lost if the master fails now. Look at the slaves: `cosmodrome doctor`.",
    ),
    R.MESSAGE_ILLEGAL: (
        "The broker does not take this message: its topic, size or properties break a rule that the remark names.",
        "Change the message; the limit of a body is the broker's maxMessageSize (4 MiB unless set).",
    ),
    R.SERVICE_NOT_AVAILABLE: (
        "The broker does not take messages now: it is stopping, its disk is full, or it is a slave.",
        "Look at disk and role: `cosmodrome brokers`.",
    ),
    R.VERSION_NOT_SUPPORTED: ("The client is too old for this server.", "Update the client."),
    R.NO_PERMISSION: (
        "The topic, group or broker does not allow this, or the access key may not do it.",
        "Compare the permissions with `cosmodrome topics describe TOPIC`, or ask for the right in ACL.",
    ),
    R.TOPIC_NOT_EXIST: (
        "The server does not know the topic.",
        "Create it with `cosmodrome topics create TOPIC`, or check its spelling and the name server's address.",
    ),
    R.TOPIC_EXIST_ALREADY: ("The topic exists already.", "Choose another name, or use the topic as it is."),
    R.PULL_NOT_FOUND: ("There is no message behind the offset yet.", "Nothing; clients pull again."),
    R.PULL_RETRY_IMMEDIATELY: (
        "No message in this stretch of the queue matches the filter.",
        "Nothing; clients pull on from the next offset.",
    ),
    R.PULL_OFFSET_MOVED: (
        "The offset is outside of what the queue keeps: messages were deleted, or the store was replaced.",
        "Clients go on at the offset in the answer. If messages were missed, keep them longer (fileReservedTime).",
    ),
    R.QUERY_NOT_FOUND: ("No message matches.", "Check topic, key and times; deleted messages are found no more."),
    R.SUBSCRIPTION_PARSE_FAILED: ("The filter expression cannot be read.", "Correct it; the remark names the place."),
    R.SUBSCRIPTION_NOT_EXIST: (
        "The broker does not know the group, or that it subscribes to this topic: no heartbeat has told it.",
        "Usually gone after the next heartbeat (30 s). If not, members of the group subscribe to different topics.",
    ),
    R.SUBSCRIPTION_NOT_LATEST: (
        "The pull carries an older subscription than the last heartbeat.",
        "Usually gone by itself. If not, members of the group differ: `cosmodrome groups describe GROUP`.",
    ),
    R.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "The broker does not know the consumer group, and makes none by itself.",
        "Create it with `cosmodrome groups create GROUP`, or set autoCreateSubscriptionGroup=true.",
    ),
    R.FILTER_DATA_NOT_EXIST: ("The broker has no compiled filter of this group.", "Usually gone after a heartbeat."),
    R.FILTER_DATA_NOT_LATEST: ("The broker's compiled filter is older than the pull's.", "Usually gone by itself."),
    R.INVALID_PARAMETER: ("A field of the request is missing or out of range.", "Read the remark; correct the field."),
    R.TRANSACTION_SHOULD_COMMIT: ("The transaction is to be committed.", "Nothing; clients and brokers use it."),
    R.TRANSACTION_SHOULD_ROLLBACK: ("The transaction is to be rolled back.", "Nothing; clients and brokers use it."),
    R.TRANSACTION_STATE_UNKNOW: ("The state of the transaction is not known.", "The broker asks the producer again."),
    R.TRANSACTION_STATE_GROUP_WRONG: (
        "The producer group that ends the transaction did not begin it.",
        "End it from a producer of the same group.",
    ),
    R.NO_BUYER_ID: ("A code of Alibaba's closed version.", "It has no meaning here."),
    R.NOT_IN_CURRENT_UNIT: ("The message belongs to another unit.", "Send it to the brokers of its unit."),
    R.CONSUMER_NOT_ONLINE: (
        "No member of the group is connected to this broker.",
        "Start a consumer of the group: `cosmodrome groups describe GROUP` shows who is there.",
    ),
    R.CONSUME_MSG_TIMEOUT: (
        "A consumer was asked through the broker and did not answer in time.",
        "Look at the consumer; its handlers may hang.",
    ),
    R.NO_MESSAGE: ("There is no message to give.", "Nothing."),
    R.POLLING_FULL: ("Too many pulls or pops wait on the broker already.", "Start fewer clients, or raise the limit."),
    R.POLLING_TIMEOUT: ("A pop waited and no message came.", "Nothing; clients pop again."),
    R.BROKER_NOT_EXIST: ("The name server does not know the broker.", "Look at `cosmodrome brokers`."),
    R.BROKER_DISPATCH_NOT_COMPLETE: ("Queues are behind the commit log.", "Ask again in a moment."),
    R.BROADCAST_CONSUMPTION: (
        "The group is broadcasting: each member keeps its own offsets, the broker has none.",
        "Ask the members, or use a clustering group.",
    ),
    R.FLOW_CONTROL: ("The server slows the caller down on purpose.", "Send or pull more slowly."),
    R.NOT_LEADER_FOR_QUEUE: ("Another broker leads this queue.", "Clients look up the route again."),
    R.ILLEGAL_OPERATION: ("The request is never allowed in this state.", "Read the remark."),
    R.GO_AWAY: (
        "The server drains its connections before it stops; it did not do the request.",
        "Connect to another, or again later; clients do so by themselves.",
    ),
    R.CONTROLLER_FENCED_MASTER_EPOCH: ("The broker's term of leadership is over.", "It follows the new master."),
    R.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: ("The set of in-sync replicas changed since.", "The broker asks again."),
    R.CONTROLLER_INVALID_MASTER: ("Another broker is the master.", "Look at `cosmodrome brokers`."),
    R.CONTROLLER_INVALID_REPLICAS: ("A replica named is not one of this broker group.", "Correct the request."),
    R.CONTROLLER_MASTER_NOT_AVAILABLE: ("No replica can become master now.", "Start a replica that was in sync."),
    R.CONTROLLER_INVALID_REQUEST: ("The controller cannot read the request.", "Check versions of both sides."),
    R.CONTROLLER_BROKER_NOT_ALIVE: ("The broker sends the controller no heartbeat.", "Start it, check its network."),
    R.CONTROLLER_NOT_LEADER: ("Another controller leads.", "Brokers ask the next by themselves."),
    R.CONTROLLER_BROKER_METADATA_NOT_EXIST: ("The controller does not know the broker.", "The broker registers first."),
    R.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: ("The broker to be forgotten is in use.", "Stop it first."),
    R.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: ("The broker has to register first.", "It does so by itself."),
    R.CONTROLLER_MASTER_STILL_EXIST: ("The old master lives.", "Nothing; no election is needed."),
    R.CONTROLLER_ELECT_MASTER_FAILED: ("No master was elected.", "Start a replica that was in sync."),
    R.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: ("The set of in-sync replicas was not changed.", "It is tried again."),
    R.CONTROLLER_BROKER_ID_INVALID: ("The broker's id is not the one it was given.", "Check its identity file."),
    R.CONTROLLER_JRAFT_INTERNAL_ERROR: ("The controller's Raft group failed.", "Read the controller's log."),
    R.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS: ("The controller has no heartbeat of the broker.", "Wait for one."),
    R.USER_NOT_EXIST: ("The user does not exist.", "Create the user, or correct the name."),
    R.POLICY_NOT_EXIST: ("The user has no such permission entry.", "Create it, or correct the resource."),
}

Q = RequestCode
REQUESTS: dict[int, str] = {
    Q.SEND_MESSAGE: "A producer sends one message (long field names).",
    Q.SEND_MESSAGE_V2: "A producer sends one message; what clients of today use.",
    Q.SEND_BATCH_MESSAGE: "A producer sends several messages of one topic at once.",
    Q.SEND_REPLY_MESSAGE: "A consumer replies to a request message.",
    Q.SEND_REPLY_MESSAGE_V2: "A consumer replies to a request message.",
    Q.PULL_MESSAGE: "A consumer asks for messages of one queue; the broker may hold it until there are some.",
    Q.LITE_PULL_MESSAGE: "As PULL_MESSAGE, of a lite pull consumer.",
    Q.POP_MESSAGE: "A consumer asks for messages of any queue; each must be acknowledged in time.",
    Q.ACK_MESSAGE: "A consumer acknowledges one popped message.",
    Q.BATCH_ACK_MESSAGE: "A consumer acknowledges several popped messages.",
    Q.CHANGE_MESSAGE_INVISIBLETIME: "A consumer asks to see a popped message again later.",
    Q.PEEK_MESSAGE: "A client looks at what a pop would bring.",
    Q.NOTIFICATION: "A client waits until there is something to pop.",
    Q.QUERY_MESSAGE: "A client looks for messages by key.",
    Q.VIEW_MESSAGE_BY_ID: "A client reads one message by its offset id.",
    Q.QUERY_CONSUMER_OFFSET: "A consumer asks where its group is on a queue.",
    Q.UPDATE_CONSUMER_OFFSET: "A consumer commits where its group is on a queue.",
    Q.UPDATE_AND_CREATE_TOPIC: "An operator creates or changes a topic on a broker.",
    Q.DELETE_TOPIC_IN_BROKER: "An operator deletes a topic on a broker.",
    Q.DELETE_TOPIC_IN_NAMESRV: "An operator removes a topic from a name server.",
    Q.HEART_BEAT: "A client tells a broker its groups and subscriptions.",
    Q.UNREGISTER_CLIENT: "A client says goodbye.",
    Q.CHECK_CLIENT_CONFIG: "A consumer has its filter checked before it starts.",
    Q.CONSUMER_SEND_MSG_BACK: "A consumer asks for a failed message again later.",
    Q.END_TRANSACTION: "A producer commits or rolls back a half message.",
    Q.CHECK_TRANSACTION_STATE: "A broker asks a producer how a transaction ended.",
    Q.GET_CONSUMER_LIST_BY_GROUP: "A consumer asks for the members of its group, to share the queues.",
    Q.NOTIFY_CONSUMER_IDS_CHANGED: "A broker tells a consumer that the members of its group changed.",
    Q.LOCK_BATCH_MQ: "An orderly consumer locks queues for itself.",
    Q.UNLOCK_BATCH_MQ: "An orderly consumer releases queues.",
    Q.GET_BROKER_CONFIG: "An operator reads a broker's settings.",
    Q.UPDATE_BROKER_CONFIG: "An operator changes a broker's settings.",
    Q.GET_BROKER_RUNTIME_INFO: "An operator reads a broker's figures.",
    Q.REGISTER_BROKER: "A broker tells a name server its topics, every 30 s.",
    Q.UNREGISTER_BROKER: "A broker leaves a name server.",
    Q.GET_ROUTEINFO_BY_TOPIC: "A client asks a name server which brokers have a topic.",
    Q.GET_BROKER_CLUSTER_INFO: "An operator asks a name server for its brokers and clusters.",
    Q.GET_CONSUME_STATS: "An operator asks how far a group is.",
    Q.GET_TOPIC_STATS_INFO: "An operator asks what the queues of a topic hold.",
    Q.INVOKE_BROKER_TO_RESET_OFFSET: "An operator moves a group to another place.",
    Q.RECALL_MESSAGE: "A producer takes back a timed message.",
    Q.QUERY_ASSIGNMENT: "A consumer asks the broker which queues it shall read.",
}

SEND_STATUSES: dict[str, tuple[str, str]] = {
    "SEND_OK": ("The message is stored as safely as the broker is set to: on disk, on slaves.", "Nothing."),
    "FLUSH_DISK_TIMEOUT": RESPONSES[R.FLUSH_DISK_TIMEOUT],
    "FLUSH_SLAVE_TIMEOUT": RESPONSES[R.FLUSH_SLAVE_TIMEOUT],
    "SLAVE_NOT_AVAILABLE": (
        "The message is stored on the SYNC_MASTER alone: no slave follows closely enough.",
        "It may be lost if the master's disk fails. Start the slave; `cosmodrome doctor` says which is missing.",
    ),
}

# The errors that a user of the Python client meets; the text of each says the particulars.
ERRORS: dict[str, tuple[str, str]] = {
    "ConnectionFailed": (
        "Nothing listens at the address, the network does not reach it, or the connection broke.",
        "Check that the server runs and that its advertised address (brokerIP1) can be reached: `cosmodrome doctor`.",
    ),
    "UntrustedServer": (
        "The server's certificate is not signed by a trusted CA, or is for another address.",
        "Give the CA with --tls-ca-file, or correct the certificate.",
    ),
    "CallTimeout": (
        "The server did not answer in time; whether it did the work is not known.",
        "Repeat what is safe to repeat; look at the server's load and disk.",
    ),
    "BrokerError": ("A server refused the request; its code and remark say why.", "`cosmodrome explain` the code."),
    "UnknownTopic": (
        "The topic does not exist and no broker makes topics by itself.",
        "`cosmodrome topics create TOPIC`, or set autoCreateTopicEnable=true.",
    ),
    "RouteNotFound": ("The name server knows no broker with the topic.", "Create it, or start its broker."),
    "SendFailed": ("No broker took the message; the tries are listed.", "Read the last try's reason."),
    "TooManySends": (
        "More sends are under way than the producer may hold.",
        "Await some of them, or raise the producer's limit.",
    ),
    "MessageNotFound": ("No broker of the topic has a message of this id.", "It may be deleted; check topic and id."),
    "DamagedMessage": (
        "The stored bytes of a message changed; its checksum does not match.",
        "Run `cosmodrome store verify` on the broker's store; replace its disk.",
    ),
    "InvalidMessage": ("No broker would take this message.", "Change the field that the error names."),
    "InvalidArgument": ("An argument cannot work.", "The error names it and what it may be."),
    "ConfigError": ("A setting cannot work.", "The error names key, file and line; `cosmodrome config lint FILE`."),
    "NotStarted": ("The client is used before its start.", "Use `async with client:` or call start()."),
    "AlreadyStarted": ("The client, or one with its id and group, runs already.", "Give each an instance name."),
    "Closed": ("The client was stopped.", "Make a new one."),
    "ProtocolError": ("Bytes are not RocketMQ's protocol.", "Check that a RocketMQ server is at the address."),
    "StoreError": ("The store cannot be opened or written.", "`cosmodrome store inspect DIR`; check disk and rights."),
    "FilterSyntaxError": ("A SQL92 filter cannot be read.", "Correct it at the character that is named."),
}


def explanations(word: str) -> list[Explanation]:
    """Return each meaning of a number or a name; capitals, `-` and `_` make no difference in names."""
    code = parse_int(word, low=-MAX_INT - 1, high=MAX_INT)
    if code is not None:
        return [one for one in every_explanation() if one.code == code]
    wanted = _folded(word)
    return [one for one in every_explanation() if _folded(one.name) == wanted]


def every_explanation() -> list[Explanation]:
    """Return all there is to explain: responses, requests, send statuses, errors."""
    made = []
    for response in ResponseCode:
        meaning, advice = RESPONSES.get(response, (f"{_words(response.name)}.", "Read the remark of the answer."))
        made.append(Explanation("response", int(response), response.name, meaning, advice))
    for request in RequestCode:
        meaning = REQUESTS.get(request, f"A request of RocketMQ's protocol: {_words(request.name).lower()}.")
        made.append(Explanation("request", int(request), request.name, meaning, ""))
    for name, (meaning, advice) in SEND_STATUSES.items():
        made.append(Explanation("send status", None, name, meaning, advice))
    for name, (meaning, advice) in ERRORS.items():
        made.append(Explanation("error", None, name, meaning, advice))
    return made


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
