//! Kernel facilities that rustix and libc do not offer safely: the only unsafe room.

pub mod descriptor;
pub mod localtime;
pub mod shared;
