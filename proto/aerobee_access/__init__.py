"""Access control: who may ask what, for every server.

    users, policies    what an administrator writes down, as values
    decision           policies and what is needed -> allowed, or why not; a pure function
    signature          who has signed a request
    table              users and policies of one server, changed by the rules of RocketMQ 5.3.3
    sealing            secrets as they lie on a disk
    gate               the one place that every request passes, with all of this behind it
    admin              the requests that change users and policies (3001 to 3010)
    copies             users and policies of a master, for its slaves
    settings           RocketMQ's keys, the same for every server

Above the remoting, below the servers. Only `sealing` touches a file, that of its key.
"""
