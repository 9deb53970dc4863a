//! A program in the kernel that chooses among the sockets of an SO_REUSEPORT group by a table that its owner writes
//! with plain stores. bpf(2), BPF_PROG_TYPE_SK_REUSEPORT; needs CAP_BPF and CAP_NET_ADMIN.
//!
//! The table names a socket for each value of the connection's hash. It holds for a time: when nobody has renewed it,
//! because its owner has stopped or died, the program chooses nothing, and the kernel goes by its own hash again.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};

/// Places of the table. A socket's share of new connections is its share of places.
pub const PLACES: usize = 256;
/// The most sockets that a program chooses among.
pub const SOCKETS: usize = 256;

// linux/bpf.h
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_REUSEPORT_SOCKARRAY: u32 = 20;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_SK_REUSEPORT: u32 = 21;
const HELPER_KTIME_GET_NS: i32 = 5;
const HELPER_SK_SELECT_REUSEPORT: i32 = 82;
/// `hash` in `struct sk_reuseport_md`.
const HASH: i16 = 32;
const SK_PASS: i32 = 1;

/// What the program reads, and counts.
#[repr(C)]
struct Table {
    /// Nanoseconds of CLOCK_MONOTONIC until which the places hold.
    until: AtomicU64,
    /// Which socket takes connections of a hash: its number in the list that was given.
    places: [AtomicU32; PLACES],
    /// How many each socket was given.
    given: [AtomicU64; SOCKETS],
}

/// The program, its table and its sockets. Dropped, the table runs out and the program stays attached without effect,
/// unless it is detached before ([`crate::sockopt::unsteer`]).
pub struct Steering {
    table: Mapped,
    program: OwnedFd,
    sockets: u32,
}

impl Steering {
    /// Loads the program for these listening sockets of one group, of which none may be steered already. It chooses
    /// nothing before it is attached and has places that hold.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without the privilege; EBUSY when another program steers a socket; `InvalidInput` for a
    /// socket that does not listen with SO_REUSEPORT, and for more than [`SOCKETS`].
    pub fn new(sockets: &[BorrowedFd<'_>]) -> io::Result<Steering> {
        if !(1..=SOCKETS).contains(&sockets.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let count = sockets.len() as u32;
        let list = create(MAP_TYPE_REUSEPORT_SOCKARRAY, 8, count, 0)?;
        for (number, socket) in (0u32..).zip(sockets) {
            update(list.as_fd(), number, socket.as_raw_fd() as u64)?;
        }
        let table = create(MAP_TYPE_ARRAY, size_of::<Table>() as u32, 1, MAP_MMAPABLE)?;
        let program = load(&choose(table.as_fd(), list.as_fd()))?;
        Ok(Steering { table: Mapped::new(table.as_fd())?, program, sockets: count })
    }

    /// Attaches it to a member's group, in the place of any program before.
    pub fn attach(&self, member: BorrowedFd<'_>) -> io::Result<()> {
        // SO_ATTACH_REUSEPORT_EBPF in socket(7).
        crate::sockopt::set_program(member, self.program.as_fd())
    }

    /// How many connections a socket was given so far, by the table and not by the kernel's hash.
    pub fn given(&self, socket: usize) -> u64 {
        self.table.table().given.get(socket).map_or(0, |given| given.load(Ordering::Relaxed))
    }

    /// Fills the table, and lets it hold for so long from now. Places beyond [`PLACES`], and sockets that were not
    /// given to [`Steering::new`], are left out.
    pub fn hold(&self, places: impl Iterator<Item = u32>, time: Duration) {
        let table = self.table.table();
        let known = places.filter(|socket| *socket < self.sockets);
        for (place, socket) in table.places.iter().zip(known) {
            place.store(socket, Ordering::Relaxed);
        }
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32);
        let until = u64::try_from((now + time).as_nanos()).unwrap_or(u64::MAX);
        table.until.store(until, Ordering::Release);
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").field("sockets", &self.sockets).finish()
    }
}

/// The table's page, which the kernel's program sees, too.
struct Mapped(NonNull<Table>);

impl Mapped {
    fn new(map: BorrowedFd<'_>) -> io::Result<Mapped> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that this program refers to.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), size_of::<Table>(), protection, MapFlags::SHARED, map, 0)?
        };
        Ok(Mapped(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    fn table(&self) -> &Table {
        // SAFETY: the mapping starts on a page and has the size of a Table, of which any bytes are valid; it lives until
        // `drop`. The kernel's program only reads it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and nobody has a reference any more.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Table>()) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

// SAFETY: the value owns its mapping, which is bound to no thread, and all access is through atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// An instruction from register `from` to register `to`.
const fn op(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    Instruction { code, registers, offset, value }
}

/// The address of a map (`kind` 1), or of the value of an array of one (2), takes two.
fn address(to: u8, kind: u8, map: BorrowedFd<'_>) -> [Instruction; 2] {
    [op(0x18, to, kind, 0, map.as_raw_fd()), op(0, 0, 0, 0, 0)]
}

/// The program. Whatever it does not choose is left to the kernel's hash.
fn choose(table: BorrowedFd<'_>, sockets: BorrowedFd<'_>) -> Vec<Instruction> {
    let places = std::mem::offset_of!(Table, places) as i16;
    let given = std::mem::offset_of!(Table, given) as i16;
    let (value, map) = (address(7, 2, table), address(2, 1, sockets));
    let call = |helper| op(0x85, 0, 0, 0, helper);
    vec![
        op(0xbf, 6, 1, 0, 0), // r6 = the context
        call(HELPER_KTIME_GET_NS),
        value[0], // r7 = the table
        value[1],
        op(0x79, 8, 7, 0, 0),    // r8 = until
        op(0x2d, 0, 8, 19, 0),   // now > r8: to the end
        op(0x61, 1, 6, HASH, 0), // r1 = the connection's hash
        op(0x57, 1, 0, 0, PLACES as i32 - 1),
        op(0x67, 1, 0, 0, 2), // in words
        op(0x0f, 1, 7, 0, 0),
        op(0x61, 9, 1, places, 0), // r9 = the socket's number
        op(0x63, 10, 9, -4, 0),
        op(0xbf, 1, 6, 0, 0),
        map[0],
        map[1],
        op(0xbf, 3, 10, 0, 0),
        op(0x07, 3, 0, 0, -4),
        op(0xb7, 4, 0, 0, 0),
        call(HELPER_SK_SELECT_REUSEPORT),
        op(0x55, 0, 0, 5, 0), // it was refused: to the end
        op(0x57, 9, 0, 0, SOCKETS as i32 - 1),
        op(0x67, 9, 0, 0, 3), // in double words
        op(0x0f, 7, 9, 0, 0),
        op(0xb7, 1, 0, 0, 1),
        op(0xdb, 7, 1, given, 0),   // added at once
        op(0xb7, 0, 0, 0, SK_PASS), // the end
        op(0x95, 0, 0, 0, 0),
    ]
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
}

fn create(kind: u32, value_size: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    descriptor(MAP_CREATE, &MapCreate { kind, key_size: 4, value_size, entries, flags })
}

fn update(map: BorrowedFd<'_>, key: u32, value: u64) -> io::Result<()> {
    let (key, value) = (ptr::from_ref(&key) as u64, ptr::from_ref(&value) as u64);
    bpf(MAP_UPDATE_ELEM, &MapUpdate { map: map.as_raw_fd() as u64, key, value, flags: 0 }).map(drop)
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let asked = ProgLoad {
        kind: PROG_TYPE_SK_REUSEPORT,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name: *b"weir_steering\0\0\0",
    };
    descriptor(PROG_LOAD, &asked)
}

fn descriptor<T>(command: i32, asked: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, asked)?;
    // SAFETY: both commands that this is called with answer with a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `asked` is the part of `union bpf_attr` that the command takes.
fn bpf<T>(command: i32, asked: &T) -> io::Result<i32> {
    let size = size_of::<T>() as u32;
    // SAFETY: the kernel reads `size` bytes of `asked`, and what it points to, during the call only: all of it is
    // borrowed by the callers until then.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(asked), size) };
    i32::try_from(answer).ok().filter(|n| *n >= 0).ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

    use super::*;

    /// Listening sockets of one group.
    fn group(n: usize) -> Vec<TcpListener> {
        let mut at = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let mut all: Vec<TcpListener> = Vec::new();
        for _ in 0..n {
            let own = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_reuseport(&own, true).unwrap();
            bind(&own, &at).unwrap();
            listen(&own, 128).unwrap();
            let own = TcpListener::from(own);
            at = own.local_addr().unwrap();
            own.set_nonblocking(true).unwrap();
            all.push(own);
        }
        all
    }

    /// How many of forty new connections each has.
    fn spread(group: &[TcpListener]) -> Vec<usize> {
        let at = group[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
        let waiting = |own: &TcpListener| std::iter::from_fn(|| own.accept().ok()).count();
        group.iter().map(waiting).collect()
    }

    #[test]
    fn connections_go_where_the_table_says_while_it_holds() {
        let group = group(3);
        let borrowed: Vec<_> = group.iter().map(AsFd::as_fd).collect();
        let steering = match Steering::new(&borrowed) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("not run: bpf(2) needs a privilege: {e}");
            }
            made => made.unwrap(),
        };
        steering.attach(borrowed[0]).unwrap();
        let long = Duration::from_secs(100);
        steering.hold(std::iter::repeat_n(2, PLACES), long);
        assert_eq!(spread(&group), [0, 0, 40]);
        assert_eq!([0, 1, 2, 3, SOCKETS].map(|n| steering.given(n)), [0, 0, 40, 0, 0]);
        steering.hold((0..PLACES as u32).map(|n| n % 2), long);
        let spread_on_two = spread(&group);
        assert!(spread_on_two[0] > 0 && spread_on_two[1] > 0, "{spread_on_two:?}");
        assert_eq!(spread_on_two[2], 0);
        // What has run out says nothing.
        steering.hold(std::iter::repeat_n(2, PLACES), Duration::ZERO);
        let by_hash = spread(&group);
        assert!(by_hash[0] > 0 && by_hash[1] > 0, "{by_hash:?}");
        assert_eq!(Steering::new(&borrowed).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        crate::sockopt::unsteer(borrowed[0]).unwrap();
        drop(steering);
    }

    #[test]
    fn what_is_no_group_is_refused() {
        let alone = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Steering::new(&[alone.as_fd()]).is_err());
        assert_eq!(Steering::new(&[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
