"""When packets of one TCP port pass the loopback device, by the kernel's clock: what a server takes for each answer, whatever its client does.

A packet socket copies the head of each packet that carries data into a ring in memory (packet(7), PACKET_RX_RING), and nothing reads the ring
meanwhile. So it costs each packet a fraction of a microsecond and needs no processor of its own. It needs CAP_NET_RAW.
"""
import ctypes
import mmap
import socket
import struct

# linux/if_packet.h, linux/if_ether.h, asm/socket.h
SOL_PACKET, PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, TPACKET_V2, TP_STATUS_USER = 263, 5, 6, 10, 1, 1
ETH_P_ALL, SO_ATTACH_FILTER = 3, 26
# A frame has the kernel's header, and 48 bytes of the packet from byte 66 on: Ethernet 14, IP 20, and TCP's first ones.
FRAME, BLOCK, KEPT = 128, 1 << 20, 48
HEAD = struct.Struct('<IIIHHII76x2s2s24x')
# Classic BPF, linux/filter.h: code, jump if true, jump if false, value. Where the kernel gives a packet's direction, and what leaves.
LOAD_BYTE, LOAD_HALF, LOAD_WORD, AND, SHIFT_RIGHT, MINUS, MINUS_X, TO_X, EQUAL, RETURN = 0x30, 0x28, 0x20, 0x54, 0x74, 0x14, 0x1c, 0x07, 0x15, 0x06
DIRECTION, OUTGOING = 0xfffff004, 4


def data_of(port):
    """A filter for outgoing IPv4 packets of the TCP port that carry data. On the loopback device each packet also comes in."""
    steps = [
        (LOAD_HALF, 12), (EQUAL, 0x800, 'else drop'),
        (LOAD_WORD, DIRECTION), (EQUAL, OUTGOING, 'else drop'),
        (LOAD_BYTE, 23), (EQUAL, socket.IPPROTO_TCP, 'else drop'),
        (LOAD_HALF, 34), (EQUAL, port, 'then over the next two'), (LOAD_HALF, 36), (EQUAL, port, 'else drop'),
        # The length of TCP's own head, and what IP carries beside it.
        (LOAD_BYTE, 46), (AND, 0xf0), (SHIFT_RIGHT, 2), (TO_X, 0),
        (LOAD_HALF, 16), (MINUS, 20), (MINUS_X, 0), (EQUAL, 0, 'then drop'),
        (RETURN, KEPT), (RETURN, 0),
    ]
    drop = len(steps) - 1

    def jumps(at, where):
        return {'else drop': (0, drop - at - 1), 'then drop': (drop - at - 1, 0), 'then over the next two': (2, 0)}[where]
    return b''.join(struct.pack('HBBI', code, *(jumps(at, where[0]) if where else (0, 0)), value)
                    for at, (code, value, *where) in enumerate(steps))


class Tap:
    """Watches the port from now on, with room for so many packets. PermissionError without CAP_NET_RAW."""

    def __init__(self, port, packets):
        self.port = port
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        program = data_of(port)
        steps = ctypes.create_string_buffer(program)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack('HL', len(program) // 8, ctypes.addressof(steps)))
        self.socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V2)
        blocks = -(-packets * FRAME // BLOCK)
        self.socket.setsockopt(SOL_PACKET, PACKET_RX_RING, struct.pack('IIII', BLOCK, blocks, FRAME, blocks * (BLOCK // FRAME)))
        self.ring = mmap.mmap(self.socket.fileno(), blocks * BLOCK)
        self.socket.bind(('lo', ETH_P_ALL))

    def packets(self):
        """(nanoseconds, source port, destination port) of each, in order."""
        for status, _, _, _, _, seconds, nanoseconds, source, to in HEAD.iter_unpack(self.ring):
            if not status & TP_STATUS_USER:
                return
            yield seconds * 10**9 + nanoseconds, int.from_bytes(source, 'big'), int.from_bytes(to, 'big')

    def answers(self):
        """Ends the watch. (when its request left, nanoseconds until its answer began) of each answer."""
        _, dropped = struct.unpack('II', self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        if dropped:
            raise OSError(f'the ring had no room for {dropped} packets')
        waiting, found = {}, []
        for at, source, to in self.packets():
            if to == self.port:
                waiting.setdefault(source, at)
            elif (asked := waiting.pop(to, None)) is not None:
                found.append((asked, at - asked))
        self.ring.close()
        self.socket.close()
        return found
