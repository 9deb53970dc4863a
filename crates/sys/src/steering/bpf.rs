//! bpf(2): maps, and programs as lists of instructions. So no compiler for eBPF is needed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

// linux/bpf.h
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_REUSEPORT_SOCKARRAY: u32 = 20;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_SK_REUSEPORT: u32 = 21;
pub(super) const KTIME_GET_NS: i32 = 5;
pub(super) const SELECT: i32 = 82;
/// `hash` in `struct sk_reuseport_md`.
pub(super) const HASH: i16 = 32;
pub(super) const PASS: i32 = 1;
/// How often a program is passed to the verifier.
const ATTEMPTS: u32 = 10;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

impl Instruction {
    /// The instruction, with the jump offset `to` if it has `from`.
    pub(super) fn jumps(self, from: i16, to: i16) -> Instruction {
        if self.offset == from { Instruction { offset: to, ..self } } else { self }
    }
}

/// An instruction from register `from` to register `to`.
pub(super) const fn op(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    Instruction { code, registers, offset, value }
}

/// Calls a helper function.
pub(super) const fn call(helper: i32) -> Instruction {
    op(0x85, 0, 0, 0, helper)
}

/// Loads the address of a map, which takes two instructions.
pub(super) fn map(to: u8, map: BorrowedFd<'_>) -> [Instruction; 2] {
    [op(0x18, to, 1, 0, map.as_raw_fd()), op(0, 0, 0, 0, 0)]
}

/// Loads the address of an array's value, which takes two instructions, too.
pub(super) fn value(to: u8, array: BorrowedFd<'_>) -> [Instruction; 2] {
    [op(0x18, to, 2, 0, array.as_raw_fd()), op(0, 0, 0, 0, 0)]
}

/// An array with one value, which can be mapped.
pub(super) fn array(bytes: usize) -> io::Result<OwnedFd> {
    let size = u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    create(MAP_TYPE_ARRAY, size, 1, MAP_MMAPABLE)
}

/// A list of sockets (BPF_MAP_TYPE_REUSEPORT_SOCKARRAY).
pub(super) fn sockets(most: u32) -> io::Result<OwnedFd> {
    create(MAP_TYPE_REUSEPORT_SOCKARRAY, 8, most, 0)
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

/// Puts a socket into a list.
pub(super) fn put(map: BorrowedFd<'_>, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u64;
    let (key, value) = (ptr::from_ref(&key) as u64, ptr::from_ref(&value) as u64);
    bpf(MAP_UPDATE_ELEM, &MapUpdate { map: map.as_raw_fd() as u64, key, value, flags: 0 }).map(drop)
}

/// Loads a program that chooses a socket.
pub(super) fn load(name: [u8; 16], program: &[Instruction]) -> io::Result<OwnedFd> {
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
        name,
    };
    // The verifier returns EAGAIN when a signal is pending (bpf_check in kernel/bpf/verifier.c),
    // such as SIGCHLD during a reload.
    for _ in 1..ATTEMPTS {
        match descriptor(PROG_LOAD, &asked) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            loaded => return loaded,
        }
    }
    descriptor(PROG_LOAD, &asked)
}

fn descriptor<T>(command: i32, asked: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, asked)?;
    // SAFETY: both commands that this is called with answer with a new descriptor without another
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `asked` is the part of `union bpf_attr` that the command uses.
fn bpf<T>(command: i32, asked: &T) -> io::Result<i32> {
    let size = size_of::<T>() as u32;
    // SAFETY: the kernel reads `size` bytes of `asked`, and what it points to, during the call only: all of it is
    // borrowed by the callers until then.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(asked), size) };
    i32::try_from(answer).ok().filter(|n| *n >= 0).ok_or_else(io::Error::last_os_error)
}
