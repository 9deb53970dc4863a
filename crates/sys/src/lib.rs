//! Kernel facilities that rustix and libc do not offer safely: the only crate with unsafe code.
//!
//! - In: values of safe types. Out: the same, or the error of the system call.
//! - Callers: any crate. Each file is one facility, and each unsafe block says why it is sound.

pub mod allocator;
pub mod beginning;
pub mod crypt;
pub mod datagram;
pub mod descriptor;
#[cfg(feature = "lua")]
pub mod dfa;
pub mod environment;
pub mod guarded;
pub mod lent;
pub mod localtime;
#[cfg(feature = "lua")]
pub mod lua;
pub mod pagecache;
pub mod poll;
pub mod prefetch;
pub mod process;
#[cfg(any(test, feature = "quarantine"))]
pub mod quarantine;
pub mod ring;
pub mod select;
pub mod shared;
pub mod signal;
pub mod sockdiag;
pub mod sockopt;
pub mod steering;
pub mod tcpinfo;
pub mod thread;
pub mod title;
pub mod user;
