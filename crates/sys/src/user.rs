//! Looks up users and groups by name, and changes to them. getpwnam_r(3), initgroups(3), setuid(2).

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The largest buffer for an entry of the user database.
const ENTRY_MAX: usize = 1 << 20;

/// The id of the user with this name.
///
/// # Errors
///
/// `NotFound`, without an OS error number, if there is no such user.
pub fn user_id(name: &CStr) -> io::Result<u32> {
    lookup(|buf| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: every pointer is valid for the call, and the length is the buffer's.
        let e = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buf.as_mut_ptr().cast(),
                buf.len(),
                &mut found,
            )
        };
        // SAFETY: when `found` is set it points to `entry`, which the call has filled.
        (e, (!found.is_null()).then(|| unsafe { (*found).pw_uid }))
    })
}

/// The id of the group with this name. Errors as in [`user_id`].
pub fn group_id(name: &CStr) -> io::Result<u32> {
    lookup(|buf| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: as in `user_id`.
        let e = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buf.as_mut_ptr().cast(),
                buf.len(),
                &mut found,
            )
        };
        // SAFETY: when `found` is set it points to `entry`, which the call has filled.
        (e, (!found.is_null()).then(|| unsafe { (*found).gr_gid }))
    })
}

/// Repeats a lookup with a growing buffer until the entry fits.
fn lookup(ask: impl Fn(&mut [u8]) -> (i32, Option<u32>)) -> io::Result<u32> {
    let mut buf = vec![0; 1024];
    loop {
        match ask(&mut buf) {
            (0, Some(id)) => return Ok(id),
            (0, None) => return Err(io::ErrorKind::NotFound.into()),
            (libc::ERANGE, _) if buf.len() < ENTRY_MAX => buf.resize(buf.len() * 2, 0),
            (e, _) => return Err(io::Error::from_raw_os_error(e)),
        }
    }
}

/// Makes `gid` the group of the process. For root: the real, effective and saved group.
pub fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: setgid takes a number only.
    check(unsafe { libc::setgid(gid) })
}

/// Sets the supplementary groups of user `name`, and `gid`.
pub fn set_groups_of(name: &CString, gid: u32) -> io::Result<()> {
    // SAFETY: the name is a valid C string for the call.
    check(unsafe { libc::initgroups(name.as_ptr(), gid) })
}

/// Makes `uid` the user of the process. For root, this cannot be undone.
pub fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: setuid takes a number only.
    check(unsafe { libc::setuid(uid) })
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nonsense_is_not() {
        assert_eq!(user_id(c"root").unwrap(), 0);
        assert_eq!(group_id(c"root").unwrap(), 0);
        let e = user_id(c"no-such-user-here").unwrap_err();
        assert_eq!((e.kind(), e.raw_os_error()), (io::ErrorKind::NotFound, None));
        assert!(group_id(c"no-such-group-here").is_err());
    }
}
