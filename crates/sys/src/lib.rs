//! Kernel facilities that rustix and libc do not offer safely: the only crate with unsafe code.

pub mod allocator;
pub mod beginning;
pub mod crypt;
pub mod datagram;
pub mod descriptor;
pub mod environment;
pub mod guarded;
pub mod localtime;
#[cfg(feature = "lua")]
pub mod lua;
pub mod pagecache;
pub mod poll;
pub mod process;
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
