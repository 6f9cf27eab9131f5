# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The heads of the records in a piece of the log: the native twin of `record.heads_between`.

It reads what is usual, and stops before anything else: the pure code goes on from there.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef SOURCE_CHECKSUM
    #define SOURCE_CHECKSUM 0
    #endif
    """
    unsigned long SOURCE_CHECKSUM

SOURCE = SOURCE_CHECKSUM  # of this file, when it was compiled

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef Py_ssize_t HEAD = 88
cdef Py_ssize_t MIN_SIZE = 91
cdef uint32_t V6 = 0x30
cdef Py_ssize_t MAX_TOPIC = 127
cdef Py_ssize_t MAX_PROPERTIES = 32767


cdef inline uint32_t u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t i64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>u32(at) << 32) | u32(at + 4))


def heads(const uint8_t[::1] view, Py_ssize_t begin, Py_ssize_t end, int64_t place, dict known, object make, object cls):
    """Return the heads of the usual records from `begin` on, and where the last of them ends.

    `known` has topics by their bytes, and `make(cls, fields)` makes a head.
    """
    cdef list found = []
    cdef Py_ssize_t at = begin, size, body, topic_at, topic_size, properties_at, properties_size
    cdef const uint8_t *data
    cdef bytes raw
    cdef object topic
    while end - at >= MIN_SIZE:
        data = &view[at]
        size = <int32_t>u32(data)
        body = <int32_t>u32(data + 84)
        if size > end - at or size < MIN_SIZE or body < 0 or body > size - MIN_SIZE:
            break
        if u32(data + 4) != MAGIC_V1 or u32(data + 36) & V6 or i64(data + 28) != place + (at - begin):
            break
        topic_at = HEAD + body + 1
        topic_size = data[topic_at - 1]
        properties_at = topic_at + topic_size + 2
        if topic_size > MAX_TOPIC or properties_at > size:
            break
        properties_size = (data[properties_at - 2] << 8) | data[properties_at - 1]
        if properties_at + properties_size != size or properties_size > MAX_PROPERTIES:
            break
        raw = (<const char *>data)[topic_at : topic_at + topic_size]
        topic = known.get(raw)
        if topic is None:
            if len(known) >= 10_000:
                known.clear()
            topic = known[raw] = raw.decode("utf-8", "replace")
        found.append(
            make(
                cls,
                (
                    size,
                    topic,
                    <int32_t>u32(data + 12),
                    i64(data + 20),
                    i64(data + 28),
                    <int32_t>u32(data + 36),
                    i64(data + 56),
                    <int32_t>u32(data + 72),
                    i64(data + 76),
                    <int32_t>u32(data + 8),
                    at + HEAD,
                    body,
                    PyUnicode_DecodeUTF8(<const char *>data + properties_at, properties_size, "replace"),
                ),
            )
        )
        at += size
    return found, at
