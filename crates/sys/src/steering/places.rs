//! The table has a socket for each value of the connection's hash, and expires. If its owner has
//! stopped or died and does not renew it, the program chooses nothing, and the kernel uses its own
//! hash again.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::bpf::{HASH, Instruction, KTIME_GET_NS, PASS, SELECT, array, call, load, op, value};
use super::{SOCKETS, SocketArray, monotonic};

/// The places of the table. A socket's share of new connections is its share of places.
pub const PLACES: usize = 256;

/// The table, which the program reads, and counters, which it writes.
#[repr(C)]
struct SteeringMap {
    /// The time of CLOCK_MONOTONIC in nanoseconds at which the table expires.
    until: AtomicU64,
    /// The number of the socket for each value of the hash.
    places: [AtomicU32; PLACES],
    /// The number of connections that each socket was assigned.
    given: [AtomicU64; SOCKETS],
}

/// The program, its table and its sockets. When this is dropped, the table expires. The program
/// stays attached without effect until it is detached ([`crate::sockopt::unsteer`]).
pub struct Steering {
    table: Mapped,
    program: OwnedFd,
    sockets: u32,
}

impl Steering {
    /// Loads the program for these listening sockets of one group, none of which may be steered
    /// already. It chooses nothing until it is attached and its table was filled.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without the privilege. EBUSY if another program steers a socket.
    /// `InvalidInput` if a socket does not listen with SO_REUSEPORT, or for more than [`SOCKETS`]
    /// sockets.
    pub fn new(sockets: &[BorrowedFd<'_>]) -> io::Result<Steering> {
        if !(1..=SOCKETS).contains(&sockets.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let list = SocketArray::new(sockets)?;
        let table = array(size_of::<SteeringMap>())?;
        let program = load(*b"weir_places\0\0\0\0\0", &choose(table.as_fd(), &list))?;
        let sockets = sockets.len() as u32;
        Ok(Steering { table: Mapped::new(table.as_fd())?, program, sockets })
    }

    /// Attaches the program to a member's group, in place of any other program.
    pub fn attach(&self, member: BorrowedFd<'_>) -> io::Result<()> {
        // SO_ATTACH_REUSEPORT_EBPF in socket(7).
        crate::sockopt::set_program(member, self.program.as_fd())
    }

    /// How many connections a socket was assigned by the table, not by the kernel's hash.
    pub fn given(&self, socket: usize) -> u64 {
        self.table.table().given.get(socket).map_or(0, |given| given.load(Ordering::Relaxed))
    }

    /// Fills the table, which expires after `time`. Places beyond [`PLACES`] and unknown sockets
    /// are ignored.
    pub fn hold(&self, places: impl Iterator<Item = u32>, time: Duration) {
        let table = self.table.table();
        let known = places.filter(|socket| *socket < self.sockets);
        for (place, socket) in table.places.iter().zip(known) {
            place.store(socket, Ordering::Relaxed);
        }
        let until = u64::try_from((monotonic() + time).as_nanos()).unwrap_or(u64::MAX);
        table.until.store(until, Ordering::Release);
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").field("sockets", &self.sockets).finish()
    }
}

/// The table's page, which the eBPF program sees as well.
struct Mapped(NonNull<SteeringMap>);

impl Mapped {
    fn new(map: BorrowedFd<'_>) -> io::Result<Mapped> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that this program refers to.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), size_of::<SteeringMap>(), protection, MapFlags::SHARED, map, 0)?
        };
        Ok(Mapped(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    fn table(&self) -> &SteeringMap {
        // SAFETY: the mapping starts on a page and has the size of a Table, of which any bytes are valid; it lives until
        // `drop`. The kernel's program reads it and adds to `given`; all of it is atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and no reference to it is left.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), size_of::<SteeringMap>()) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

// SAFETY: the value owns its mapping, which is bound to no thread, and all access is through atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

/// The program. Without a choice of its own, the kernel uses its hash.
fn choose(table: BorrowedFd<'_>, list: &SocketArray) -> Vec<Instruction> {
    let places = std::mem::offset_of!(SteeringMap, places) as i16;
    let given = std::mem::offset_of!(SteeringMap, given) as i16;
    let (value, map) = (value(7, table), list.address(2));
    vec![
        op(0xbf, 6, 1, 0, 0), // r6 = the context
        call(KTIME_GET_NS),
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
        call(SELECT),
        op(0x55, 0, 0, 5, 0), // it was refused: to the end
        op(0x57, 9, 0, 0, SOCKETS as i32 - 1),
        op(0x67, 9, 0, 0, 3), // in double words
        op(0x0f, 7, 9, 0, 0),
        op(0xb7, 1, 0, 0, 1),
        op(0xdb, 7, 1, given, 0), // added at once
        op(0xb7, 0, 0, 0, PASS),  // the end
        op(0x95, 0, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::tests::{group, spread};
    use super::*;

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
        // An expired table chooses nothing.
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
