"""Consensus in the manner of Raft, without I/O: `core` decides, `log` and `storage` say what must be kept.

The rules are those of the Raft paper and of Ongaro's thesis: pre-vote, check-quorum, commits of the leader's own term
only, a no-op at the start of each term, reads confirmed by a quorum, and one change of the members at a time.

    words     messages, options, errors, quorum (who the members are, what a majority of them has)
    state     what every member keeps, and which messages wait until it is on disk
    roles     election (votes), follower (takes appends), leader (replicates, commits), each over the same state
    core      the door: step, tick, propose, ready
"""
