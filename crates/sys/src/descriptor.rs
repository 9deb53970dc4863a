//! Replacing the file behind a descriptor number that others hold. Kernel: dup3(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Puts `with`'s open file behind `target`'s number and closes `with`.
///
/// The exchange is atomic: a concurrent `write` on `target` goes to the old file or to the new
/// one. The number stays the same, so nobody who holds it has to be told. `target` gets
/// close-on-exec.
pub fn replace(target: BorrowedFd<'_>, with: OwnedFd) -> io::Result<()> {
    loop {
        // SAFETY: both numbers are open for the whole call, since `target` borrows an owner and
        // `with` is owned here. dup3 leaves `target`'s number open, so its owner stays right.
        let r = unsafe { libc::dup3(with.as_raw_fd(), target.as_raw_fd(), libc::O_CLOEXEC) };
        if r >= 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    #[test]
    fn the_number_stays_and_the_file_changes() {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("weir-sys-descriptor-{}", std::process::id()));
        let open = |p: &std::path::Path| {
            std::fs::OpenOptions::new().create(true).append(true).read(true).open(p)
        };
        let mut first = open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut second = open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let number = first.as_raw_fd();

        replace(first.as_fd(), second.try_clone().unwrap().into()).unwrap();
        first.write_all(b"late").unwrap();

        assert_eq!(first.as_raw_fd(), number);
        let mut text = String::new();
        second.rewind().unwrap();
        second.read_to_string(&mut text).unwrap();
        assert_eq!(text, "late");
    }
}
